//! Loops without a sum.

use super::exp::exp;
use super::vectorized;

/// Writes `silu(gate) * up` for each row `[gate | up]` of `2 * width` elements into rows of `width`.
pub fn silu_gate(gate_up: &[f32], width: usize, out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        |args| silu_gate_body(args),
        (gate_up, width, out),
    );
}

#[inline(always)]
fn silu_gate_body((gate_up, width, out): (&[f32], usize, &mut [f32])) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = row.split_at(width);
        for i in 0..width {
            out[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        }
    }
}

/// Writes the gradient of `[gate | up]` rows, given that of [`silu_gate`]'s result.
pub fn silu_gate_backward(gate_up: &[f32], width: usize, gradient: &[f32], out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        |args| silu_gate_backward_body(args),
        (gate_up, width, gradient, out),
    );
}

#[inline(always)]
fn silu_gate_backward_body((gate_up, width, gradient, out): (&[f32], usize, &[f32], &mut [f32])) {
    let rows = gate_up.chunks_exact(2 * width).zip(gradient.chunks_exact(width));
    for ((row, gradient), out) in rows.zip(out.chunks_exact_mut(2 * width)) {
        let (gate, up) = row.split_at(width);
        let (gate_gradient, up_gradient) = out.split_at_mut(width);
        for i in 0..width {
            let sigmoid = 1.0 / (1.0 + exp(-gate[i]));
            let silu = gate[i] * sigmoid;
            up_gradient[i] = gradient[i] * silu;
            gate_gradient[i] = gradient[i] * up[i] * (sigmoid + silu * (1.0 - sigmoid));
        }
    }
}

/// Adds `row` to each row of `rows`.
pub fn add_rows(rows: &mut [f32], row: &[f32]) {
    vectorized(
        #[inline(always)]
        |args| add_rows_body(args),
        (rows, row),
    );
}

#[inline(always)]
fn add_rows_body((rows, row): (&mut [f32], &[f32])) {
    for target in rows.chunks_exact_mut(row.len()) {
        for (target, value) in target.iter_mut().zip(row) {
            *target += value;
        }
    }
}

/// Adds `values` to `target`, element by element.
pub fn add_to(target: &mut [f32], values: &[f32]) {
    vectorized(
        #[inline(always)]
        |args| add_to_body(args),
        (target, values),
    );
}

#[inline(always)]
fn add_to_body((target, values): (&mut [f32], &[f32])) {
    for (target, value) in target.iter_mut().zip(values) {
        *target += value;
    }
}
