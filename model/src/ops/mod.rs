//! Differentiable operations on tensors.
//!
//! Each has two forms with the same value and gradient: a fused one with a hand-written backward pass, used for
//! `f32` on the CPU, and one composed of the tensor library's operations, for every other device and number format.
//! Rows are tokens throughout: a tensor is `(rows, width)` unless said otherwise.

mod attention;
mod head_norm;
mod linear;
mod pull_back;
mod rms_norm;
mod rope;
mod silu_gate;
mod token_logprobs;

use candle_core::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};

pub(crate) use attention::{Segments, attention};
pub(crate) use head_norm::head_norm;
pub(crate) use linear::{add_bias, linear};
pub(crate) use pull_back::pull_back;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::{RopeAngles, rope};
pub(crate) use silu_gate::silu_gate;
pub(crate) use token_logprobs::{Targets, token_logprobs};

/// Rows that one task handles in row-wise operations. Sums over rows are taken by such blocks, in order, so the
/// number is part of the result's bits and does not depend on the threads.
const BLOCK_ROWS: usize = 64;

/// Whether the fused form applies.
fn is_fused(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

/// The elements of a contiguous `f32` tensor in CPU memory.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("expected f32, found {:?}", storage_dtype(storage)) };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => bail!("expected a contiguous tensor, found strides {:?}", layout.stride()),
    }
}

fn storage_dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

/// Calls `f` with the elements of an `f32` CPU tensor, made contiguous if need be.
pub(crate) fn with_elements<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(elements(storage, layout)?),
        _ => bail!("expected a tensor in CPU memory"),
    }
}

/// A CPU tensor that owns `values`.
fn from_rows(values: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, like.shape(), like.device())
}

fn output(values: Vec<f32>, shape: impl Into<Shape>) -> (CpuStorage, Shape) {
    (CpuStorage::F32(values), shape.into())
}

/// Runs `block` for each block of rows of `inputs` and `out`, in parallel, and adds up the vectors it fills, in
/// the order of the blocks.
fn sum_over_blocks(
    out: &mut [f32],
    out_width: usize,
    sum_width: usize,
    block: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) -> Vec<f32> {
    use rayon::prelude::*;
    let partial: Vec<Vec<f32>> = out
        .par_chunks_mut((BLOCK_ROWS * out_width).max(1))
        .enumerate()
        .map(|(i, out)| {
            let mut sum = vec![0.0; sum_width];
            block(i * BLOCK_ROWS, out, &mut sum);
            sum
        })
        .collect();
    let mut total = vec![0.0; sum_width];
    for sum in partial {
        for (total, value) in total.iter_mut().zip(sum) {
            *total += value;
        }
    }
    total
}

#[cfg(test)]
mod testing;
