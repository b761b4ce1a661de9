//! A low-rank adapter under training.

use std::path::Path;

use envace_kernels::{Left, Right, Sizes, product};

use super::kept::Place;
use super::trained::Trained;
use crate::error::ModelError;
use crate::lora::{ADAPTER_WEIGHTS_FILE, Adapter, AdapterConfig, Factors, Module, add_low_rank};
use crate::weights::{Kind, OutputTensor, Parameter, Source, WeightFiles, write_safetensors};

/// The factors, and the base they change.
///
/// The base stays in its files: only after a step are the adapted matrices read again.
pub(super) struct TrainedAdapter {
    config: AdapterConfig,
    modules: Vec<Module>,
    /// `A` and `B` of each module in turn.
    pub(super) factors: Vec<Trained>,
    base: WeightFiles,
}

/// Rows that a matrix was multiplied with, of `n_in` elements, and the gradient of the products, of `n_out`.
#[derive(Clone, Copy)]
pub(super) struct LinearRows<'a> {
    pub(super) x: &'a [f32],
    pub(super) n_in: usize,
    pub(super) gradient: &'a [f32],
    pub(super) n_out: usize,
}

impl TrainedAdapter {
    /// Starts from loaded values; `base` is the folder of the model.
    pub(super) fn new(adapter: Adapter, base: &Path) -> Result<Self, ModelError> {
        let Adapter { config, modules, factors, .. } = adapter;
        let mut place = Place::new(None);
        let factors = factors.into_iter().map(|factor| Trained::new(factor, &mut place)).collect();
        Ok(Self { config, modules, factors, base: WeightFiles::open_model(base)? })
    }

    /// What it is.
    pub(super) fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// Whether a matrix of the model is adapted.
    pub(super) fn changes(&self, kind: Kind) -> bool {
        self.modules.iter().any(|module| module.kind == kind)
    }

    /// A matrix of the base, with what the adapter adds to it if `is_adapted`.
    pub(super) fn weights(&self, parameter: &Parameter, is_adapted: bool) -> Result<Vec<f32>, ModelError> {
        let mut values = parameter.read(&self.base, "")?;
        let pairs = self.factors.as_chunks::<2>().0;
        let modules = self.modules.iter().zip(pairs);
        for (module, [a, b]) in modules.filter(|(module, _)| is_adapted && module.kind == parameter.kind) {
            let factors = Factors { a: a.weights(), b: b.weights(), scale: self.config.scale() };
            add_low_rank(&mut values, parameter.shape[1], module, factors);
        }
        Ok(values)
    }

    /// Adds the gradients of the factors of a matrix, from the rows it was multiplied with: with `X`, the gradient `G`
    /// of the products and `s` the scale, `s G^T (X A^T)` for `B` and `s (G B)^T X` for `A`. The gradient of the matrix
    /// itself never exists.
    pub(super) fn add_gradient(&mut self, kind: Kind, rows: LinearRows<'_>) {
        let LinearRows { x, n_in, gradient, n_out: stride } = rows;
        let (n_rows, rank, scale) = (x.len() / n_in, self.config.rank, self.config.scale());
        let pairs = self.factors.as_chunks_mut::<2>().0;
        let modules = self.modules.iter().zip(pairs);
        let mut narrow = vec![0.0; n_rows * rank];
        for (module, [a, b]) in modules.filter(|(module, _)| module.kind == kind) {
            let (n_out, values) = (module.n_outputs(), &gradient[module.first_column..]);
            let sizes = Sizes { n_rows, depth: n_in, width: rank };
            product(
                Left::rows(x, n_in),
                Right::Transposed { values: a.weights() },
                sizes,
                false,
                &mut narrow,
            );
            scale_all(&mut narrow, scale);
            let left = Left { values, row_stride: 1, depth_stride: stride };
            let sizes = Sizes { n_rows: n_out, depth: n_rows, width: rank };
            product(left, Right::Rows { values: &narrow, stride: rank }, sizes, true, &mut b.gradient);
            let left = Left { values, row_stride: stride, depth_stride: 1 };
            let right = Right::Rows { values: b.weights(), stride: rank };
            product(left, right, Sizes { n_rows, depth: n_out, width: rank }, false, &mut narrow);
            scale_all(&mut narrow, scale);
            let sizes = Sizes { n_rows: rank, depth: n_rows, width: n_in };
            let right = Right::Rows { values: x, stride: n_in };
            product(Left::transposed(&narrow, rank), right, sizes, true, &mut a.gradient);
        }
    }

    /// The same from the gradient of the whole fused matrix, `(in, out)` with rows of `stride` elements.
    pub(super) fn add_full_gradient(&mut self, kind: Kind, gradient: &[f32], stride: usize) {
        let (n_in, rank, scale) = (gradient.len() / stride, self.config.rank, self.config.scale());
        let pairs = self.factors.as_chunks_mut::<2>().0;
        let modules = self.modules.iter().zip(pairs);
        for (module, [a, b]) in modules.filter(|(module, _)| module.kind == kind) {
            let (n_out, values) = (module.n_outputs(), &gradient[module.first_column..]);
            let mut of_b = vec![0.0; n_out * rank];
            let left = Left { values, row_stride: 1, depth_stride: stride };
            let sizes = Sizes { n_rows: n_out, depth: n_in, width: rank };
            product(left, Right::Transposed { values: a.weights() }, sizes, false, &mut of_b);
            b.gradient.iter_mut().zip(of_b).for_each(|(target, value)| *target += scale * value);
            let mut of_a = vec![0.0; n_in * rank];
            let left = Left { values, row_stride: stride, depth_stride: 1 };
            let right = Right::Rows { values: b.weights(), stride: rank };
            product(left, right, Sizes { n_rows: n_in, depth: n_out, width: rank }, false, &mut of_a);
            for (r, row) in a.gradient.chunks_exact_mut(n_in).enumerate() {
                let column = of_a[r..].iter().step_by(rank);
                row.iter_mut().zip(column).for_each(|(target, value)| *target += scale * value);
            }
        }
    }

    /// Writes the adapter's two files into a folder.
    pub(super) fn save(&self, dir: &Path) -> Result<(), ModelError> {
        let tensors = self.factors.iter().map(|trained| {
            let (parameter, dtype) = (&trained.parameter, trained.dtype);
            let values: Source<'_> = Box::new(|| Ok(trained.weights().into()));
            let piece = &parameter.pieces[0];
            (piece.name.clone(), OutputTensor { parameter, piece, values, dtype })
        });
        write_safetensors(&dir.join(ADAPTER_WEIGHTS_FILE), tensors, ("format", "pt".into()))?;
        self.config.save(dir)
    }
}

fn scale_all(values: &mut [f32], scale: f32) {
    values.iter_mut().for_each(|value| *value *= scale);
}
