//! Operations on rows, shared out among the threads.
//!
//! Sums over rows are taken by blocks of [`BLOCK_ROWS`], in order, so the number is part of a result's bits and does not
//! depend on the threads.

use rayon::prelude::*;

use crate::attention::HeadLayout;
use crate::elementwise::{add_rows, add_to, silu_gate, silu_gate_backward};
use crate::norm::{rms_norm_backward_rows, rms_norm_rows};
use crate::rotary::rotate_rows;

/// Rows that one task handles.
const BLOCK_ROWS: usize = 64;
/// Elements that one task handles where rows do not matter.
const BLOCK: usize = 1 << 14;

/// Writes the normalized rows of `weight.len()` elements.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let block = (BLOCK_ROWS * weight.len()).max(1);
    let blocks = out.par_chunks_mut(block).zip(x.par_chunks(block));
    blocks.for_each(|(out, x)| rms_norm_rows(x, weight, eps, out));
}

/// Adds the gradient of the rows to `out` and that of the weight to `weight_sum`, given that of the normalized rows.
pub fn rms_norm_backward(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    gradient: &[f32],
    out: &mut [f32],
    weight_sum: &mut [f32],
) {
    let width = weight.len();
    sum_over_blocks(out, width, weight_sum, |rows, out, sum| {
        let mut own = vec![0.0; out.len()];
        rms_norm_backward_rows(&x[rows.clone()], weight, eps, &gradient[rows], &mut own, sum);
        add_to(out, &own);
    });
}

/// Normalizes the query heads of `[queries | keys | values]` rows with one weight of `head_dim` and the key heads with
/// another; copies the values.
pub fn head_norm(rows: &[f32], weights: (&[f32], &[f32]), layout: HeadLayout, eps: f32, out: &mut [f32]) {
    let (width, keys, values) = (layout.row_width(), layout.key_start(0), layout.value_start(0));
    let block = BLOCK_ROWS * width;
    out.par_chunks_mut(block).zip(rows.par_chunks(block)).for_each(|(out, rows)| {
        for (out, row) in out.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
            rms_norm_rows(&row[..keys], weights.0, eps, &mut out[..keys]);
            rms_norm_rows(&row[keys..values], weights.1, eps, &mut out[keys..values]);
            out[values..].copy_from_slice(&row[values..]);
        }
    });
}

/// Turns the gradient of normalized rows, in place, into that of the rows, and adds those of the weights to `sums`,
/// which holds that of the queries' weight and then that of the keys'.
pub fn head_norm_backward(
    rows: &[f32],
    weights: (&[f32], &[f32]),
    layout: HeadLayout,
    eps: f32,
    gradient: &mut [f32],
    sums: &mut [f32],
) {
    let (width, keys, values) = (layout.row_width(), layout.key_start(0), layout.value_start(0));
    sum_over_blocks(gradient, width, sums, |range, gradient, sum| {
        let (query_sum, key_sum) = sum.split_at_mut(layout.head_dim);
        let mut given = vec![0.0; values];
        for (row, gradient) in rows[range].chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
            given.copy_from_slice(&gradient[..values]);
            let (x, g) = (&row[..keys], &given[..keys]);
            rms_norm_backward_rows(x, weights.0, eps, g, &mut gradient[..keys], query_sum);
            let (x, g) = (&row[keys..values], &given[keys..]);
            rms_norm_backward_rows(x, weights.1, eps, g, &mut gradient[keys..values], key_sum);
        }
    });
}

/// Turns query and key heads of `[queries | keys | values]` rows, in place, by `head_dim / 2` angles a row given as
/// cosines and sines; a `direction` of -1 turns back, which is also the gradient.
pub fn rotate(rows: &mut [f32], cos: &[f32], sin: &[f32], layout: HeadLayout, direction: f32) {
    let (width, half) = (layout.row_width(), layout.head_dim / 2);
    let angles = cos.par_chunks(BLOCK_ROWS * half).zip(sin.par_chunks(BLOCK_ROWS * half));
    let n_turned = layout.n_heads + layout.n_kv_heads;
    rows.par_chunks_mut(BLOCK_ROWS * width).zip(angles).for_each(|(rows, angles)| {
        rotate_rows(rows, width, layout.head_dim, n_turned, angles, direction);
    });
}

/// Writes `silu(gate) * up` for rows `[gate | up]` of `2 * width` elements.
pub fn gate_rows(gate_up: &[f32], width: usize, out: &mut [f32]) {
    out.par_chunks_mut(BLOCK_ROWS * width)
        .zip(gate_up.par_chunks(BLOCK_ROWS * 2 * width))
        .for_each(|(out, rows)| silu_gate(rows, width, out));
}

/// Writes the gradient of `[gate | up]` rows, given that of [`gate_rows`]'s result.
pub fn gate_rows_backward(gate_up: &[f32], width: usize, gradient: &[f32], out: &mut [f32]) {
    out.par_chunks_mut(BLOCK_ROWS * 2 * width)
        .zip(gate_up.par_chunks(BLOCK_ROWS * 2 * width))
        .zip(gradient.par_chunks(BLOCK_ROWS * width))
        .for_each(|((out, rows), gradient)| silu_gate_backward(rows, width, gradient, out));
}

/// Adds a vector to each row.
pub fn add_bias(rows: &mut [f32], bias: &[f32]) {
    rows.par_chunks_mut(BLOCK_ROWS * bias.len()).for_each(|rows| add_rows(rows, bias));
}

/// Adds the sum of the rows to `sum`.
pub fn add_row_sum(rows: &[f32], sum: &mut [f32]) {
    let width = sum.len();
    let blocks: Vec<Vec<f32>> = rows
        .par_chunks(BLOCK_ROWS * width)
        .map(|rows| {
            let mut sum = vec![0.0; width];
            rows.chunks_exact(width).for_each(|row| add_rows(&mut sum, row));
            sum
        })
        .collect();
    blocks.iter().for_each(|block| add_to(sum, block));
}

/// Adds `values` to `target`, element by element.
pub fn add(target: &mut [f32], values: &[f32]) {
    let blocks = target.par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
    blocks.for_each(|(target, values)| add_to(target, values));
}

/// Runs `block` for each block of rows of `out`, with its range of elements, and adds the vectors it fills to `sum`, in
/// the order of the blocks.
fn sum_over_blocks(
    out: &mut [f32],
    width: usize,
    sum: &mut [f32],
    block: impl Fn(std::ops::Range<usize>, &mut [f32], &mut [f32]) + Sync,
) {
    let size = (BLOCK_ROWS * width).max(1);
    let n_sums = sum.len();
    let parts: Vec<Vec<f32>> = out
        .par_chunks_mut(size)
        .enumerate()
        .map(|(i, out)| {
            let mut part = vec![0.0; n_sums];
            block(i * size..i * size + out.len(), out, &mut part);
            part
        })
        .collect();
    parts.iter().for_each(|part| add_to(sum, part));
}
