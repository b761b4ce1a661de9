//! Starting a backward pass from a given gradient.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// Runs the backward pass of `sum(gradient * output)`, without computing that sum.
pub(crate) fn pull_back(output: &Tensor, gradient: Tensor) -> Result<GradStore> {
    output.apply_op1(Seed { gradient })?.backward()
}

/// A scalar whose gradient with respect to its argument is given.
struct Seed {
    gradient: Tensor,
}

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::{BackendDevice, BackendStorage};
        let scalar = storage.device().zeros_impl(&Shape::from(()), self.gradient.dtype())?;
        Ok((scalar, Shape::from(())))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, _grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.gradient.clone()))
    }
}
