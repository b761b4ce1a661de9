//! A parameter under training.

use candle_core::{Device, Tensor, Var};
use rayon::prelude::*;

use crate::error::{ComputeContext, ModelError};
use crate::kernels::{add_to, sum_of_squares};
use crate::ops::with_elements;
use crate::weights::{LoadedParameter, Parameter, StoredDtype};

/// Elements that one task handles; sums are taken by such blocks, in order.
const BLOCK: usize = 1 << 14;

/// Master values, gradient and moments of one parameter, and the tensor that the forward pass reads.
pub(super) struct Trained {
    pub(super) parameter: Parameter,
    /// The format of the checkpoint; the tensor holds the master values rounded to it.
    pub(super) dtype: StoredDtype,
    pub(super) master: Vec<f32>,
    pub(super) gradient: Vec<f32>,
    pub(super) first_moment: Vec<f32>,
    pub(super) second_moment: Vec<f32>,
    pub(super) var: Var,
}

impl Trained {
    /// Starts from loaded values, with moments of zero.
    pub(super) fn new(loaded: LoadedParameter, device: &Device) -> Result<Self, ModelError> {
        let LoadedParameter { parameter, dtype, values } = loaded;
        let zeros = vec![0.0; values.len()];
        let var =
            Var::from_slice(&values, parameter.shape.as_slice(), device).computing("loading weights")?;
        Ok(Self {
            parameter,
            dtype,
            gradient: zeros.clone(),
            first_moment: zeros.clone(),
            second_moment: zeros,
            master: values,
            var,
        })
    }

    /// Adds a gradient from the backward pass.
    pub(super) fn add_gradient(&mut self, gradient: &Tensor) -> Result<(), ModelError> {
        let target = &mut self.gradient;
        gradient
            .to_device(&Device::Cpu)
            .and_then(|gradient| {
                with_elements(&gradient, |gradient| {
                    target
                        .par_chunks_mut(BLOCK)
                        .zip(gradient.par_chunks(BLOCK))
                        .for_each(|(target, gradient)| add_to(target, gradient));
                    Ok(())
                })
            })
            .computing("adding a gradient")
    }

    /// Adds the transposed gradient, of shape `(hidden, vocabulary)`, of an embedding used as output projection.
    pub(super) fn add_transposed_gradient(&mut self, gradient: &Tensor) -> Result<(), ModelError> {
        let (n_tokens, width) = (self.parameter.shape[0], self.parameter.shape[1]);
        let target = &mut self.gradient;
        gradient
            .to_device(&Device::Cpu)
            .and_then(|gradient| {
                with_elements(&gradient, |gradient| {
                    target.par_chunks_mut(width * 64).enumerate().for_each(|(block, target)| {
                        let first = block * 64;
                        let n = target.len() / width;
                        for (i, row) in gradient.chunks_exact(n_tokens).enumerate() {
                            for (j, value) in row[first..first + n].iter().enumerate() {
                                target[j * width + i] += value;
                            }
                        }
                    });
                    Ok(())
                })
            })
            .computing("adding a gradient")
    }

    /// Sum of the squared gradient, by blocks in order.
    pub(super) fn gradient_square(&self) -> f64 {
        let blocks: Vec<f64> = self.gradient.par_chunks(BLOCK).map(sum_of_squares).collect();
        blocks.iter().sum()
    }

    /// Forgets the gradient.
    pub(super) fn clear_gradient(&mut self) {
        self.gradient.fill(0.0);
    }

    /// Rounds the master values to the checkpoint's format, for the next forward pass.
    pub(super) fn publish(&self) -> Result<(), ModelError> {
        let dtype = self.dtype;
        let rounded: Vec<f32> =
            self.master.par_iter().with_min_len(BLOCK).map(|value| dtype.round(*value)).collect();
        Tensor::from_vec(rounded, self.parameter.shape.as_slice(), self.var.device())
            .and_then(|tensor| self.var.set(&tensor))
            .computing("publishing weights")
    }

    /// Calls `f` with blocks of master, gradient and moments, in parallel.
    pub(super) fn update(&mut self, f: impl Fn(&mut [f32], &[f32], &mut [f32], &mut [f32]) + Sync) {
        self.master
            .par_chunks_mut(BLOCK)
            .zip(self.gradient.par_chunks(BLOCK))
            .zip(self.first_moment.par_chunks_mut(BLOCK))
            .zip(self.second_moment.par_chunks_mut(BLOCK))
            .for_each(|(((master, gradient), first), second)| f(master, gradient, first, second));
    }
}
