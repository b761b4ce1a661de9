//! Every form of the product against its definition.

use super::*;

/// Values that are not round, from a small generator.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// The definition: one accumulator, in order, by fused multiply-adds.
fn by_definition(a: &[f32], b: &[f32], sizes: Sizes) -> Vec<f32> {
    let Sizes { n_rows, depth, width } = sizes;
    let mut out = vec![0.0_f32; n_rows * width];
    for i in 0..n_rows {
        for j in 0..width {
            for p in 0..depth {
                out[i * width + j] = a[i * depth + p].mul_add(b[p * width + j], out[i * width + j]);
            }
        }
    }
    out
}

fn transposed(values: &[f32], n_rows: usize, width: usize) -> Vec<f32> {
    (0..width).flat_map(|j| (0..n_rows).map(move |i| values[i * width + j])).collect()
}

#[test]
fn every_form_has_the_bits_of_the_definition() {
    let shapes = [
        (1, 1, 1),
        (2, 5, 3),
        (1, 64, 96),
        (7, 300, 33),
        (8, 17, 64),
        (50, 513, 70),
        (130, 40, 200),
        (33, 600, 130),
    ];
    for (n_rows, depth, width) in shapes {
        let sizes = Sizes { n_rows, depth, width };
        let (a, b) = (values(n_rows * depth, 1), values(depth * width, 2));
        let expected = by_definition(&a, &b, sizes);
        let panels = Panels::from_rows(&b, depth, width);
        let from_transposed = Panels::from_transposed(&transposed(&b, depth, width), depth, width);
        let flipped = transposed(&a, n_rows, depth);
        let rights = [Right::Rows { values: &b, stride: width }, panels.right(), from_transposed.right()];
        for right in rights {
            for left in [Left::rows(&a, depth), Left::transposed(&flipped, n_rows)] {
                let mut out = vec![f32::NAN; n_rows * width];
                product(left, right, sizes, false, &mut out);
                assert_eq!(out, expected, "{n_rows} x {depth} x {width}");
            }
        }
    }
}

#[test]
fn adding_continues_the_sum() {
    // The first half of the depth, then the second half added, is the whole in one go.
    let sizes = Sizes { n_rows: 60, depth: 100, width: 75 };
    let (a, b) = (values(60 * 100, 3), values(100 * 75, 4));
    let expected = by_definition(&a, &b, sizes);
    let half = Sizes { depth: 50, ..sizes };
    let left = |from: usize| Left { values: &a[from..], row_stride: 100, depth_stride: 1 };
    let mut out = vec![f32::NAN; 60 * 75];
    product(left(0), Right::Rows { values: &b, stride: 75 }, half, false, &mut out);
    product(left(50), Right::Rows { values: &b[50 * 75..], stride: 75 }, half, true, &mut out);
    assert_eq!(out, expected);
}

#[test]
fn one_and_two_threads_agree() {
    let sizes = Sizes { n_rows: 20, depth: 300, width: 1000 };
    let (a, b) = (values(20 * 300, 5), values(300 * 1000, 6));
    let run = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        let mut out = vec![0.0; 20 * 1000];
        pool.install(|| {
            product(Left::rows(&a, 300), Right::Rows { values: &b, stride: 1000 }, sizes, false, &mut out);
        });
        out
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn panels_of_bf16_have_the_bits_of_the_widened_values() {
    for (n_rows, depth, width) in [(1, 40, 70), (16, 300, 64), (60, 33, 5)] {
        let sizes = Sizes { n_rows, depth, width };
        let a = values(n_rows * depth, 1);
        let rounded = |x: f32| half::bf16::from_f32(x).to_f32();
        let b: Vec<f32> = values(depth * width, 2).into_iter().map(rounded).collect();
        let wide = Panels::from_rows(&b, depth, width);
        let narrow = Panels::from_rows(&b, depth, width).to_bf16();
        assert_eq!(narrow.n_bytes() * 2, wide.n_bytes());
        let mut out = vec![f32::NAN; n_rows * width];
        product(Left::rows(&a, depth), narrow.right(), sizes, false, &mut out);
        assert_eq!(out, by_definition(&a, &b, sizes), "{n_rows} x {depth} x {width}");
        for panels in [wide, narrow] {
            let mut column = vec![f32::NAN; depth];
            panels.read_column(width - 1, &mut column);
            assert!(column.iter().enumerate().all(|(p, x)| *x == b[p * width + width - 1]));
        }
    }
}
