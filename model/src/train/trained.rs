//! Parameters under training.

use std::borrow::Cow;
use std::collections::BTreeMap;

use envace_kernels::sum_of_squares;
use rayon::prelude::*;

use super::adapter::TrainedAdapter;
use super::kept::{Block, Kept, Place, memory_blocks, zero_blocks};
use crate::error::ModelError;
use crate::weights::{Kind, LoadedParameter, Parameter, StoredDtype};

/// Elements whose squares are summed at a time; sums are taken by such blocks, in order.
const BLOCK: usize = 1 << 14;
/// Elements that one task of an update handles, and that are read from the scratch file at a time.
const PART: usize = 1 << 16;

/// Weights, master values, gradient and moments of one parameter.
pub(super) struct Trained {
    pub(super) parameter: Parameter,
    /// The format of the checkpoint.
    pub(super) dtype: StoredDtype,
    /// What the forward pass reads: the master values rounded to `dtype`.
    weights: Vec<f32>,
    /// The master values, once they are not the weights: never where `dtype` is `f32`.
    master: Option<Kept>,
    /// The gradient where passes add to it; empty while it is not in memory.
    pub(super) gradient: Vec<f32>,
    gradient_home: Home,
    first_moment: Kept,
    second_moment: Kept,
    /// Room for master values in the scratch file, until it is used.
    master_room: Option<Kept>,
}

/// Where a gradient is between passes.
enum Home {
    /// In memory.
    Here,
    /// In the file, which holds it if `is_written`; else it is zero.
    File { range: Kept, is_written: bool },
    /// There is none: the values are not trained.
    Nowhere,
}

impl Trained {
    /// Starts from loaded values, with moments of zero.
    pub(super) fn new(loaded: LoadedParameter, place: &mut Place) -> Self {
        let LoadedParameter { parameter, dtype, values } = loaded;
        let len = values.len();
        let is_file = place.is_file();
        let gradient_home =
            if is_file { Home::File { range: place.take(len), is_written: false } } else { Home::Here };
        Self {
            parameter,
            dtype,
            master: None,
            gradient: if is_file { Vec::new() } else { vec![0.0; len] },
            gradient_home,
            first_moment: place.take(len),
            second_moment: place.take(len),
            master_room: (is_file && dtype != StoredDtype::F32).then(|| place.take(len)),
            weights: values,
        }
    }

    /// Values that are not trained: without gradient and moments.
    pub(super) fn frozen(loaded: LoadedParameter) -> Self {
        let LoadedParameter { parameter, values, .. } = loaded;
        Self {
            parameter,
            dtype: StoredDtype::F32,
            weights: values,
            master: None,
            gradient: Vec::new(),
            gradient_home: Home::Nowhere,
            first_moment: Kept::Memory(Vec::new()),
            second_moment: Kept::Memory(Vec::new()),
            master_room: None,
        }
    }

    /// Whether the values are not trained.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self.gradient_home, Home::Nowhere)
    }

    /// What the forward pass reads: the values that the checkpoint will hold.
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The values that the optimizer steps.
    pub(super) fn master(&self) -> Result<Cow<'_, [f32]>, ModelError> {
        self.master.as_ref().map_or_else(|| Ok(self.weights().into()), Kept::read)
    }

    /// First and second moment.
    pub(super) fn moments(&self) -> [&Kept; 2] {
        [&self.first_moment, &self.second_moment]
    }

    /// First and second moment, to be replaced.
    pub(super) fn moments_mut(&mut self) -> [&mut Kept; 2] {
        [&mut self.first_moment, &mut self.second_moment]
    }

    /// Takes over master values, which must round to the weights.
    pub(super) fn set_master(&mut self, values: Vec<f32>) -> Result<(), ModelError> {
        if self.dtype == StoredDtype::F32 {
            return Ok(());
        }
        let room = self.master.take().or_else(|| self.master_room.take());
        let mut kept = room.unwrap_or_else(|| Kept::Memory(Vec::new()));
        kept.write(values)?;
        self.master = Some(kept);
        Ok(())
    }

    /// Brings the gradient into memory, where passes add to it.
    pub(super) fn fetch_gradient(&mut self) -> Result<(), ModelError> {
        if let (Home::File { range, is_written }, true) = (&self.gradient_home, self.gradient.is_empty()) {
            let zeros = || vec![0.0; self.weights.len()];
            self.gradient = if *is_written { range.read()?.into_owned() } else { zeros() };
        }
        Ok(())
    }

    /// Takes the gradient out of memory, if it is not kept there.
    pub(super) fn store_gradient(&mut self) -> Result<(), ModelError> {
        if let (Home::File { range, is_written }, false) = (&mut self.gradient_home, self.gradient.is_empty())
        {
            range.write(std::mem::take(&mut self.gradient))?;
            *is_written = true;
        }
        Ok(())
    }

    /// The gradient, wherever it is.
    pub(super) fn read_gradient(&self) -> Result<Cow<'_, [f32]>, ModelError> {
        match &self.gradient_home {
            Home::File { range, is_written: true } if self.gradient.is_empty() => range.read(),
            Home::File { .. } if self.gradient.is_empty() => Ok(vec![0.0; self.weights.len()].into()),
            _ => Ok(self.gradient.as_slice().into()),
        }
    }

    /// Sum of the squared gradient, by blocks in order.
    pub(super) fn gradient_square(&mut self) -> Result<f64, ModelError> {
        let parts = self.gradient_home.blocks(&mut self.gradient, self.weights.len());
        let sums = parts.into_par_iter().map_init(Vec::new, |buffer, part| {
            let part = part.open(buffer)?;
            Ok(part.values.chunks(BLOCK).map(sum_of_squares).collect())
        });
        let sums: Vec<Vec<f64>> = sums.collect::<Result<_, ModelError>>()?;
        Ok(sums.iter().flatten().sum())
    }

    /// Forgets the gradient.
    pub(super) fn clear_gradient(&mut self) {
        match &mut self.gradient_home {
            Home::Here | Home::Nowhere => self.gradient.fill(0.0),
            Home::File { is_written, .. } => {
                self.gradient = Vec::new();
                *is_written = false;
            }
        }
    }

    /// Calls `f` with parts of master, gradient and moments, in parallel, and rounds the master values to the
    /// checkpoint's format for the next forward pass.
    pub(super) fn update(
        &mut self,
        f: impl Fn(&mut [f32], &[f32], &mut [f32], &mut [f32]) + Sync,
    ) -> Result<(), ModelError> {
        let dtype = self.dtype;
        if dtype != StoredDtype::F32 && self.master.is_none() {
            let values = self.weights.clone();
            self.set_master(values)?;
        }
        let gradient = self.gradient_home.blocks(&mut self.gradient, self.weights.len());
        let (masters, mut weights): (_, Vec<Option<&mut [f32]>>) = match &mut self.master {
            Some(master) => (master.blocks(PART), self.weights.chunks_mut(PART).map(Some).collect()),
            None => (memory_blocks(&mut self.weights, PART), Vec::new()),
        };
        weights.resize_with(masters.len(), || None);
        let (first, second) = (self.first_moment.blocks(PART), self.second_moment.blocks(PART));
        (masters, weights, gradient, first, second).into_par_iter().try_for_each_init(
            <[Vec<f32>; 4]>::default,
            |[a, b, c, d], (master, weights, gradient, first, second)| {
                let (master, gradient) = (master.open(a)?, gradient.open(b)?);
                let (first, second) = (first.open(c)?, second.open(d)?);
                f(master.values, gradient.values, first.values, second.values);
                if let Some(weights) = weights {
                    weights.iter_mut().zip(&*master.values).for_each(|(w, value)| *w = dtype.round(*value));
                }
                master.save()?;
                first.save()?;
                second.save()
            },
        )
    }
}

impl Home {
    /// The gradient in parts; `values` is what is in memory of its `len` elements: all or nothing.
    fn blocks<'a>(&'a mut self, values: &'a mut [f32], len: usize) -> Vec<Block<'a>> {
        match self {
            Self::File { range, is_written: true } if values.is_empty() => range.blocks(PART),
            Self::File { .. } if values.is_empty() => zero_blocks(len, PART),
            _ => memory_blocks(values, PART),
        }
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

    /// A parameter that the architecture has.
    pub(super) fn need(&self, kind: Kind) -> Result<&Trained, ModelError> {
        self.index.get(&kind).map(|index| &self.all[*index]).ok_or_else(|| missing(kind))
    }

    /// A parameter that the architecture has, to add to its gradient.
    pub(super) fn need_mut(&mut self, kind: Kind) -> Result<&mut Trained, ModelError> {
        self.index.get(&kind).map(|index| &mut self.all[*index]).ok_or_else(|| missing(kind))
    }

    /// Two different parameters at once.
    pub(super) fn pair_mut(
        &mut self,
        first: Kind,
        second: Kind,
    ) -> Result<(&mut Trained, &mut Trained), ModelError> {
        let index = |kind| self.index.get(&kind).copied().ok_or_else(|| missing(kind));
        let indices = [index(first)?, index(second)?];
        let [first, second] = self.all.get_disjoint_mut(indices).map_err(|_| missing(second))?;
        Ok((first, second))
    }

    /// Brings gradients into memory, where passes add to them.
    pub(super) fn fetch_gradients(&mut self, is_meant: impl Fn(Kind) -> bool) -> Result<(), ModelError> {
        self.all.iter_mut().filter(|t| is_meant(t.parameter.kind)).try_for_each(Trained::fetch_gradient)
    }

    /// Takes gradients out of memory, if they are not kept there.
    pub(super) fn store_gradients(&mut self, is_meant: impl Fn(Kind) -> bool) -> Result<(), ModelError> {
        self.all.iter_mut().filter(|t| is_meant(t.parameter.kind)).try_for_each(Trained::store_gradient)
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
            trained.weights = adapter.weights(&trained.parameter, is_adapted)?;
        }
        Ok(())
    }
}

fn missing(kind: Kind) -> ModelError {
    ModelError::invalid(format!("a tensor is missing: {kind:?}"))
}
