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

/// The definition: 256 positions after 256, each block in one accumulator, in order, by fused multiply-adds; the sum of
/// a block is added to those before it.
fn by_definition(a: &[f32], b: &[f32], sizes: Sizes) -> Vec<f32> {
    added_by_definition(a, b, sizes, vec![-0.0_f32; sizes.n_rows * sizes.width])
}

/// As [`by_definition`], with the sums of the blocks added to `out`.
fn added_by_definition(a: &[f32], b: &[f32], sizes: Sizes, mut out: Vec<f32>) -> Vec<f32> {
    let Sizes { n_rows, depth, width } = sizes;
    for i in 0..n_rows {
        for j in 0..width {
            for start in (0..depth).step_by(256) {
                let block = start..(start + 256).min(depth);
                out[i * width + j] +=
                    block.fold(0.0_f32, |sum, p| a[i * depth + p].mul_add(b[p * width + j], sum));
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
        (49, 3, 4_200),
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
fn every_form_adds_the_sum_of_each_block() {
    for (n_rows, depth, width) in [(1, 300, 70), (20, 600, 130), (60, 513, 75), (200, 257, 40)] {
        let sizes = Sizes { n_rows, depth, width };
        let (a, b) = (values(n_rows * depth, 3), values(depth * width, 4));
        // Large, so that an order of its own shows.
        let before: Vec<f32> = values(n_rows * width, 5).into_iter().map(|x| 1000.0 * x).collect();
        let expected = added_by_definition(&a, &b, sizes, before.clone());
        let panels = Panels::from_rows(&b, depth, width);
        let flipped = transposed(&b, depth, width);
        let rows = Right::Rows { values: &b, stride: width };
        for right in [rows, panels.right(), Right::Transposed { values: &flipped }] {
            let mut out = before.clone();
            product(Left::rows(&a, depth), right, sizes, true, &mut out);
            assert_eq!(out, expected, "{n_rows} x {depth} x {width}");
        }
    }
}

#[test]
fn a_sum_can_be_left_off_at_whole_blocks() {
    // The first 256 positions, then the rest added, is the whole in one go.
    let sizes = Sizes { n_rows: 60, depth: 400, width: 75 };
    let (a, b) = (values(60 * 400, 3), values(400 * 75, 4));
    let left = |from: usize| Left { values: &a[from..], row_stride: 400, depth_stride: 1 };
    let mut out = vec![f32::NAN; 60 * 75];
    for (from, depth, is_added) in [(0, 256, false), (256, 144, true)] {
        let right = Right::Rows { values: &b[from * 75..], stride: 75 };
        product(left(from), right, Sizes { depth, ..sizes }, is_added, &mut out);
    }
    assert_eq!(out, by_definition(&a, &b, sizes));
}

#[test]
fn a_straight_sum_can_be_left_off_anywhere() {
    let sizes = Sizes { n_rows: 7, depth: 600, width: 75 };
    let (a, b) = (values(7 * 600, 3), values(600 * 75, 4));
    let straight = |steps: &[(usize, usize)]| {
        let mut out = vec![f32::NAN; 7 * 75];
        for &(from, depth) in steps {
            let left = Left { values: &a[from..], row_stride: 600, depth_stride: 1 };
            let right = Right::Rows { values: &b[from * 75..], stride: 75 };
            block_product(left, right, Sizes { depth, ..sizes }, from > 0, &mut out, 75);
        }
        out
    };
    let in_order =
        |i: usize, j: usize| (0..600).fold(0.0_f32, |sum, p| a[i * 600 + p].mul_add(b[p * 75 + j], sum));
    let expected: Vec<f32> = (0..7 * 75).map(|at| in_order(at / 75, at % 75)).collect();
    assert_eq!(straight(&[(0, 600)]), expected);
    assert_eq!(straight(&[(0, 33), (33, 300), (333, 267)]), expected);
}

#[test]
fn the_error_of_a_long_sum_stays_small() {
    // 4,096 times 0.7: at most 256 roundings in a block and 16 of the blocks, each of a part in 2^24. All positions in
    // one accumulator would be off by 4e-5 of the sum, because many of the roundings are alike.
    let depth = 4096;
    let (a, b) = (vec![0.7; depth], vec![1.0; depth]);
    let exact = 4096.0 * f64::from(0.7_f32);
    let mut out = [f32::NAN];
    let right = Right::Rows { values: &b, stride: 1 };
    product(Left::rows(&a, depth), right, Sizes { n_rows: 1, depth, width: 1 }, false, &mut out);
    let error = (f64::from(out[0]) - exact).abs() / exact;
    assert!(error < f64::from(256 + 16) / f64::from(1 << 24), "{error}");
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
