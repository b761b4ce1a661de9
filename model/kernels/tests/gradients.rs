//! Every backward pass against finite differences.
//!
//! The witness is the definition of each operation, written out in `f64`: the kernel's result must be its value, and the
//! kernel's gradient its central difference quotient, both to 2e-5 of the largest element. The quotient's own error is
//! below 1e-8 of that.

#[path = "gradients/attention.rs"]
mod attention;

use envace_kernels::{
    HeadLayout, LogSoftmax, gate_rows, gate_rows_backward, head_norm, head_norm_backward, rms_norm,
    rms_norm_backward, rotate,
};

const EPS: f32 = 1e-3;
/// Rows of more than two blocks.
const N_ROWS: usize = 133;

/// Values around zero that are not round.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn assert_close(what: &str, found: &[f32], exact: &[f64]) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let size = exact.iter().fold(0.0_f64, |size, value| size.max(value.abs()));
    assert!(size > 0.0, "{what}: all is zero");
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        assert!(error <= size * 2e-5, "{what}, element {i}: {found}, exact {exact}");
    }
}

/// Checks an operation of some inputs: `definition` gives its result, row after row; `kernel` the same, and `backward` the
/// gradient of each input, given that of the result.
///
/// `reach(input, element)` are the elements of the result that an element of an input can change, so that not all of them
/// are computed for each quotient.
fn check(
    inputs: &[Vec<f32>],
    definition: impl Fn(&[Vec<f64>], std::ops::Range<usize>) -> Vec<f64>,
    reach: impl Fn(usize, usize) -> std::ops::Range<usize>,
    kernel: impl Fn(&[Vec<f32>]) -> Vec<f32>,
    backward: impl Fn(&[Vec<f32>], &[f32]) -> Vec<Vec<f32>>,
) {
    const STEP: f64 = 1e-5;
    let mut exact: Vec<Vec<f64>> =
        inputs.iter().map(|input| input.iter().map(|value| f64::from(*value)).collect()).collect();
    let result = kernel(inputs);
    assert_close("result", &result, &definition(&exact, 0..result.len()));
    let given = values(result.len(), 99);
    let found = backward(inputs, &given);
    assert_eq!(found.len(), inputs.len(), "gradients");
    for (input, found) in found.iter().enumerate() {
        let quotients: Vec<f64> = (0..inputs[input].len())
            .map(|element| {
                let range = reach(input, element);
                let weights = &given[range.clone()];
                let mut at = |step: f64| {
                    let value = exact[input][element];
                    exact[input][element] = value + step;
                    let result = definition(&exact, range.clone());
                    exact[input][element] = value;
                    let terms = result.iter().zip(weights).map(|(value, weight)| value * f64::from(*weight));
                    terms.sum::<f64>()
                };
                (at(STEP) - at(-STEP)) / (2.0 * STEP)
            })
            .collect();
        assert_close(&format!("gradient of input {input}"), found, &quotients);
    }
}

/// What an element of row-wise inputs can change: its row of the result; a weight, with as many elements as `others` says,
/// can change all.
fn row_of(width: usize, out_width: usize, n_rows: usize) -> impl Fn(usize, usize) -> std::ops::Range<usize> {
    move |input, element| match input {
        0 => element / width * out_width..(element / width + 1) * out_width,
        _ => 0..n_rows * out_width,
    }
}

/// The normalized elements of a row, by definition.
fn normalized(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let root = (mean + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x / root * weight).collect()
}

#[test]
fn rms_norm_and_its_weight() {
    const WIDTH: usize = 11;
    check(
        &[values(N_ROWS * WIDTH, 1), values(WIDTH, 2)],
        |inputs, range| {
            let rows = inputs[0][range].chunks_exact(WIDTH);
            rows.flat_map(|row| normalized(row, &inputs[1])).collect()
        },
        row_of(WIDTH, WIDTH, N_ROWS),
        |inputs| {
            let mut out = vec![f32::NAN; inputs[0].len()];
            rms_norm(&inputs[0], &inputs[1], EPS, &mut out);
            out
        },
        |inputs, given| {
            let (mut rows, mut weight) = (vec![0.0; inputs[0].len()], vec![0.0; WIDTH]);
            rms_norm_backward(&inputs[0], &inputs[1], EPS, given, &mut rows, &mut weight);
            // Both are added to what is there.
            rms_norm_backward(&inputs[0], &inputs[1], EPS, given, &mut rows, &mut weight);
            [rows, weight].map(|sum| sum.iter().map(|value| value / 2.0).collect()).to_vec()
        },
    );
}

#[test]
fn head_norm_and_its_weights() {
    let layout = HeadLayout { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
    let (width, keys, values_start) = (layout.row_width(), layout.key_start(0), layout.value_start(0));
    check(
        &[values(N_ROWS * width, 1), values(6, 2), values(6, 3)],
        |inputs, range| {
            let of_row = |row: &[f64]| {
                let heads = row[..values_start].chunks_exact(6).enumerate();
                let heads = heads.flat_map(|(head, x)| normalized(x, &inputs[if head < 4 { 1 } else { 2 }]));
                heads.chain(row[values_start..].iter().copied()).collect::<Vec<f64>>()
            };
            assert_eq!(keys, 4 * 6);
            inputs[0][range].chunks_exact(width).flat_map(of_row).collect()
        },
        row_of(width, width, N_ROWS),
        |inputs| {
            let mut out = vec![f32::NAN; inputs[0].len()];
            head_norm(&inputs[0], (&inputs[1], &inputs[2]), layout, EPS, &mut out);
            out
        },
        |inputs, given| {
            // In place; the sums are added to what is there.
            let (mut rows, mut sums) = (given.to_vec(), vec![0.5; 12]);
            let weights = (inputs[1].as_slice(), inputs[2].as_slice());
            head_norm_backward(&inputs[0], weights, layout, EPS, &mut rows, &mut sums);
            sums.iter_mut().for_each(|sum| *sum -= 0.5);
            vec![rows, sums[..6].to_vec(), sums[6..].to_vec()]
        },
    );
}

#[test]
fn rotation() {
    let layout = HeadLayout { n_heads: 2, n_kv_heads: 1, head_dim: 6 };
    let width = layout.row_width();
    let angles: Vec<f32> = values(N_ROWS * 3, 4).iter().map(|value| value * 9.0).collect();
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
    check(
        &[values(N_ROWS * width, 1)],
        |inputs, range| {
            let first = range.start / width;
            let of_row = |(i, row): (usize, &[f64])| {
                let mut out = row.to_vec();
                // Two query heads and a key head; the value stays. Element i is paired with element i + 3.
                for head in 0..3 {
                    for pair in 0..3 {
                        let angle = f64::from(angles[(first + i) * 3 + pair]);
                        let (low, high) = (head * 6 + pair, head * 6 + pair + 3);
                        out[low] = row[low] * angle.cos() - row[high] * angle.sin();
                        out[high] = row[high] * angle.cos() + row[low] * angle.sin();
                    }
                }
                out
            };
            inputs[0][range].chunks_exact(width).enumerate().flat_map(of_row).collect()
        },
        row_of(width, width, N_ROWS),
        |inputs| {
            let mut rows = inputs[0].clone();
            rotate(&mut rows, &cos, &sin, layout, 1.0);
            rows
        },
        |_, given| {
            let mut rows = given.to_vec();
            rotate(&mut rows, &cos, &sin, layout, -1.0);
            vec![rows]
        },
    );
}

#[test]
fn the_gate() {
    const WIDTH: usize = 19;
    let inputs = values(N_ROWS * 2 * WIDTH, 1).iter().map(|value| value * 4.0).collect();
    check(
        &[inputs],
        |inputs, range| {
            let first = range.start / WIDTH * 2 * WIDTH;
            let rows = inputs[0][first..first + range.len() * 2].chunks_exact(2 * WIDTH);
            let of_row = |row: &[f64]| {
                let (gate, up) = row.split_at(WIDTH);
                let pairs = gate.iter().zip(up);
                pairs.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect::<Vec<f64>>()
            };
            rows.flat_map(of_row).collect()
        },
        row_of(2 * WIDTH, WIDTH, N_ROWS),
        |inputs| {
            let mut out = vec![f32::NAN; N_ROWS * WIDTH];
            gate_rows(&inputs[0], WIDTH, &mut out);
            out
        },
        |inputs, given| {
            let mut out = vec![f32::NAN; N_ROWS * 2 * WIDTH];
            gate_rows_backward(&inputs[0], WIDTH, given, &mut out);
            vec![out]
        },
    );
}

#[test]
fn log_softmax_and_its_entropy() {
    // Temperature 0 counts as 1.
    for (temperature, exact) in [(1.0, 1.0), (0.7, 0.7), (2.5, 2.5), (0.0, 1.0)] {
        let logits: Vec<f32> = values(53, 1).iter().map(|value| value * 3.0).collect();
        let target = 17;
        let exact_temperature = f64::from(exact as f32);
        check(
            &[logits],
            |inputs, _| {
                let scaled: Vec<f64> = inputs[0].iter().map(|logit| logit / exact_temperature).collect();
                let sum: f64 = scaled.iter().map(|logit| logit.exp()).sum();
                let logprobs: Vec<f64> = scaled.iter().map(|logit| logit - sum.ln()).collect();
                vec![logprobs[target], -logprobs.iter().map(|logprob| logprob.exp() * logprob).sum::<f64>()]
            },
            |_, _| 0..2,
            |inputs| {
                let row = LogSoftmax::new(&inputs[0], temperature);
                vec![row.logprob(inputs[0][target]), row.entropy(&inputs[0])]
            },
            |inputs, given| {
                let mut logits = inputs[0].clone();
                let row = LogSoftmax::new(&logits, temperature);
                row.backward(&mut logits, target, given[0], given[1]);
                vec![logits]
            },
        );
    }
}
