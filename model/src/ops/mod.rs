//! Operations on tensors whose rows are tokens, `(rows, width)` unless said otherwise.
//!
//! Each has two forms with the same value: a fused one for `f32` on the CPU, and one composed of the tensor library's
//! operations for every other device and number format. The composed form has the library's gradient. The fused one has
//! none: what trains on the CPU calls the kernels and their hand-written backward passes itself; the tests here compare
//! these with the composed form's gradient.

mod attention;
mod head_norm;
mod linear;
mod pull_back;
mod rms_norm;
mod rope;
mod silu_gate;
mod token_logprobs;

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, bail};

pub(crate) use attention::attention;
pub(crate) use head_norm::head_norm;
pub(crate) use linear::{add_bias, linear, linear_transposed};
pub(crate) use pull_back::pull_back;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::{RopeAngles, rope};
pub(crate) use silu_gate::silu_gate;
pub(crate) use token_logprobs::{
    Targets, backward as token_logprobs_backward, forward as token_logprobs_forward, logits_rows,
    token_logprobs,
};

/// Whether the fused form applies.
pub(crate) fn is_fused(x: &Tensor) -> bool {
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

/// A CPU tensor of `width` columns that `fill` writes; it starts as zeros.
fn from_fill(n_rows: usize, width: usize, x: &Tensor, fill: impl FnOnce(&mut [f32])) -> Result<Tensor> {
    let mut out = vec![0.0; n_rows * width];
    fill(&mut out);
    Tensor::from_vec(out, (n_rows, width), x.device())
}

#[cfg(test)]
mod testing;
