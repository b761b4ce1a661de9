//! Parameters under training.

use std::collections::BTreeMap;

use envace_kernels::sum_of_squares;
use rayon::prelude::*;

use super::adapter::TrainedAdapter;
use crate::error::ModelError;
use crate::weights::{Kind, LoadedParameter, Parameter, StoredDtype};

/// Elements that one task handles; sums are taken by such blocks, in order.
const BLOCK: usize = 1 << 14;

/// Master values, gradient and moments of one parameter.
pub(super) struct Trained {
    pub(super) parameter: Parameter,
    /// The format of the checkpoint.
    pub(super) dtype: StoredDtype,
    pub(super) master: Vec<f32>,
    /// The master values rounded to the checkpoint's format; empty where that is `f32`.
    rounded: Vec<f32>,
    pub(super) gradient: Vec<f32>,
    pub(super) first_moment: Vec<f32>,
    pub(super) second_moment: Vec<f32>,
}

impl Trained {
    /// Starts from loaded values, with moments of zero.
    pub(super) fn new(loaded: LoadedParameter) -> Self {
        let LoadedParameter { parameter, dtype, values } = loaded;
        let zeros = || vec![0.0; values.len()];
        let rounded = if dtype == StoredDtype::F32 { Vec::new() } else { values.clone() };
        Self {
            parameter,
            dtype,
            rounded,
            gradient: zeros(),
            first_moment: zeros(),
            second_moment: zeros(),
            master: values,
        }
    }

    /// Values that are not trained: without gradient and moments.
    pub(super) fn frozen(loaded: LoadedParameter) -> Self {
        let LoadedParameter { parameter, values, .. } = loaded;
        Self {
            parameter,
            dtype: StoredDtype::F32,
            master: values,
            rounded: Vec::new(),
            gradient: Vec::new(),
            first_moment: Vec::new(),
            second_moment: Vec::new(),
        }
    }

    /// Whether the values are not trained.
    pub(super) fn is_frozen(&self) -> bool {
        self.gradient.is_empty()
    }

    /// What the forward pass reads: the values that the checkpoint will hold.
    pub(super) fn weights(&self) -> &[f32] {
        if self.rounded.is_empty() { &self.master } else { &self.rounded }
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
    pub(super) fn publish(&mut self) {
        let dtype = self.dtype;
        let blocks = self.rounded.par_chunks_mut(BLOCK).zip(self.master.par_chunks(BLOCK));
        blocks.for_each(|(rounded, master)| {
            rounded.iter_mut().zip(master).for_each(|(rounded, value)| *rounded = dtype.round(*value));
        });
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

/// All parameters, in the order in which everything runs over them.
///
/// With an adapter those of the model are frozen, and its factors are what is trained.
pub(super) struct Parameters {
    all: Vec<Trained>,
    index: BTreeMap<Kind, usize>,
    pub(super) adapter: Option<Box<TrainedAdapter>>,
}

impl Parameters {
    pub(super) fn new(all: Vec<Trained>) -> Self {
        let index = all.iter().enumerate().map(|(i, trained)| (trained.parameter.kind, i)).collect();
        Self { all, index, adapter: None }
    }

    pub(super) fn get(&self, kind: Kind) -> Option<&Trained> {
        self.index.get(&kind).map(|index| &self.all[*index])
    }

    pub(super) fn get_mut(&mut self, kind: Kind) -> Option<&mut Trained> {
        self.index.get(&kind).map(|index| &mut self.all[*index])
    }

    /// Two different parameters at once.
    pub(super) fn pair_mut(&mut self, first: Kind, second: Kind) -> Option<(&mut Trained, &mut Trained)> {
        let indices = [*self.index.get(&first)?, *self.index.get(&second)?];
        let [first, second] = self.all.get_disjoint_mut(indices).ok()?;
        Some((first, second))
    }

    /// What is trained.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Trained> {
        self.adapter.as_ref().map_or(&self.all, |adapter| &adapter.factors).iter()
    }

    /// What is trained.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Trained> {
        self.adapter.as_mut().map_or(&mut self.all, |adapter| &mut adapter.factors).iter_mut()
    }

    /// What the forward pass reads.
    pub(super) fn of_model(&self) -> impl Iterator<Item = &Trained> {
        self.all.iter()
    }

    /// Makes the weights of adapted matrices anew: the base's, and what the adapter adds to them if `is_adapted`.
    pub(super) fn merge(&mut self, is_adapted: bool) -> Result<(), ModelError> {
        let Some(adapter) = &self.adapter else { return Ok(()) };
        for trained in self.all.iter_mut().filter(|trained| adapter.changes(trained.parameter.kind)) {
            trained.master = adapter.weights(&trained.parameter, is_adapted)?;
        }
        Ok(())
    }
}
