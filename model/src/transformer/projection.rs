//! A weight matrix in the form in which it is multiplied with.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};
use envace_kernels::{Left, Panels, Sizes, add, product};

use crate::ops::{linear, linear_transposed, with_elements};

/// A matrix that rows are multiplied with.
///
/// Tensors are for training and for devices other than the CPU, panels for sampling on the CPU. On the CPU results have
/// the same bits. A result has the format of the rows, whatever that of the weights is.
#[derive(Clone)]
pub(crate) enum Projection {
    /// `(in, out)`.
    Direct(Tensor),
    /// `(out, in)`; a row can also be looked up.
    Transposed(Tensor),
    /// Copied for the CPU's products, in `f32` or `bf16`; a column can also be looked up.
    Panels(Arc<Panels>),
}

impl Projection {
    /// Multiplies `(rows, in)`; panels give no gradient.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Direct(weight) => in_format_of(weight, x, |x| linear(x, weight)),
            Self::Transposed(weight) => in_format_of(weight, x, |x| linear_transposed(x, weight)),
            Self::Panels(panels) => fused(panels, x, None),
        }
    }

    /// The product with `(rows, in)`, added to `(rows, out)`.
    pub(crate) fn forward_onto(&self, x: &Tensor, to: &Tensor) -> Result<Tensor> {
        match self {
            Self::Direct(_) | Self::Transposed(_) => to + self.forward(x)?,
            Self::Panels(panels) => fused(panels, x, Some(to)),
        }
    }

    /// Number of outputs.
    pub(crate) fn n_outputs(&self) -> Result<usize> {
        match self {
            Self::Direct(weight) => weight.dim(1),
            Self::Transposed(weight) => weight.dim(0),
            Self::Panels(panels) => Ok(panels.width()),
        }
    }

    /// The weights of some outputs as rows, `bf16` widened to `f32`: what an embedding is. Each id must be below
    /// [`Projection::n_outputs`].
    pub(crate) fn look_up(&self, ids: &[u32], device: &candle_core::Device) -> Result<Tensor> {
        match self {
            Self::Direct(_) => bail!("an embedding is kept by rows"),
            Self::Transposed(weight) => {
                let ids = Tensor::new(ids, weight.device())?;
                let rows = weight.detach().index_select(&ids, 0)?;
                if rows.dtype() == DType::BF16 { rows.to_dtype(DType::F32) } else { Ok(rows) }
            }
            Self::Panels(panels) => {
                let depth = panels.depth();
                let mut rows = vec![0.0; ids.len() * depth];
                for (id, row) in ids.iter().zip(rows.chunks_exact_mut(depth)) {
                    panels.read_column(*id as usize, row);
                }
                Tensor::from_vec(rows, (ids.len(), depth), device)
            }
        }
    }
}

/// Multiplies in the format of the weight, with rows and result in that of the rows.
fn in_format_of(weight: &Tensor, x: &Tensor, multiply: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.dtype() == weight.dtype() {
        return multiply(x);
    }
    multiply(&x.to_dtype(weight.dtype())?)?.to_dtype(x.dtype())
}

fn fused(panels: &Panels, x: &Tensor, to: Option<&Tensor>) -> Result<Tensor> {
    let (n_rows, depth) = x.dims2()?;
    let width = panels.width();
    if depth != panels.depth() {
        bail!("rows of {depth} do not fit a weight of {} rows", panels.depth());
    }
    let mut out = vec![0.0; n_rows * width];
    with_elements(x, |x| {
        let sizes = Sizes { n_rows, depth, width };
        product(Left::rows(x, depth), panels.right(), sizes, false, &mut out);
        Ok(())
    })?;
    if let Some(to) = to {
        if to.dims2()? != (n_rows, width) {
            bail!("a product of {n_rows} rows of {width} cannot be added to {:?}", to.shape());
        }
        with_elements(to, |to| {
            add(&mut out, to);
            Ok(())
        })?;
    }
    Tensor::from_vec(out, (n_rows, width), x.device())
}
