use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use envace_kernels::{Left, Right, Sizes, product};
use rayon::prelude::*;

use super::{ADAPTER_CONFIG_FILE, AdapterConfig};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::{Kind, LoadedParameter, Parameter, StoredDtype, WeightFiles, parameters};

/// The weights of an adapter's folder.
pub(crate) const ADAPTER_WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Elements of the added term that exist at a time.
const TERM_BLOCK: usize = 1 << 20;

/// A matrix of the files that an adapter changes, and where it lies in the fused one.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    /// The fused matrix.
    pub(crate) kind: Kind,
    /// First of its columns in the fused matrix.
    pub(crate) first_column: usize,
    /// `A`, `(rank, in)`, and `B`, `(out, rank)`, under PEFT's names.
    pub(crate) factors: [Parameter; 2],
}

/// An adapter with its values.
pub(crate) struct Adapter {
    pub(crate) config: AdapterConfig,
    pub(crate) modules: Vec<Module>,
    /// `A` and `B` of each module in turn.
    pub(crate) factors: Vec<LoadedParameter>,
    /// The file, for messages.
    pub(crate) path: PathBuf,
}

impl Adapter {
    /// Reads an adapter of a base with this configuration.
    ///
    /// # Errors
    /// Those of [`AdapterConfig::load`]; a target module that the base does not have; a tensor that is missing, extra,
    /// damaged or wrongly shaped, each named with its file.
    pub(crate) fn load(dir: &Path, base: &ModelConfig) -> Result<Self, ModelError> {
        let config = AdapterConfig::load(dir)?;
        let modules = Module::of(&config, base, &dir.join(ADAPTER_CONFIG_FILE))?;
        let path = dir.join(ADAPTER_WEIGHTS_FILE);
        let files = WeightFiles::open(std::slice::from_ref(&path))?;
        let parameters = || modules.iter().flat_map(|module| &module.factors);
        let known: BTreeSet<&str> = parameters().map(|parameter| parameter.pieces[0].name.as_str()).collect();
        if let Some(name) = files.names().find(|name| !known.contains(name)) {
            return Err(ModelError::ExtraTensor { path, name: name.into() });
        }
        let read = |parameter: &Parameter| {
            let (dtype, values) = (parameter.dtype(&files)?, parameter.read(&files, "")?);
            Ok(LoadedParameter { parameter: parameter.clone(), dtype, values })
        };
        let factors = parameters().map(read).collect::<Result<_, ModelError>>()?;
        Ok(Self { config, modules, factors, path })
    }

    /// Adds to a matrix of the base what the adapter adds to it; the sum is in `f32`. Others stay as they are.
    ///
    /// # Errors
    /// [`ModelError::AdapterSum`] if a sum is not finite.
    pub(crate) fn merge_into(&self, loaded: &mut LoadedParameter) -> Result<(), ModelError> {
        let pairs = self.factors.as_chunks::<2>().0;
        let kind = loaded.parameter.kind;
        for (module, [a, b]) in self.modules.iter().zip(pairs).filter(|(module, _)| module.kind == kind) {
            let factors = Factors { a: &a.values, b: &b.values, scale: self.config.scale() };
            add_low_rank(&mut loaded.values, loaded.parameter.shape[1], module, factors);
            loaded.dtype = StoredDtype::F32;
        }
        match loaded.values.par_iter().position_first(|value| !value.is_finite()) {
            None => Ok(()),
            Some(index) => {
                let name = loaded.parameter.pieces[0].name.clone();
                Err(ModelError::AdapterSum { path: self.path.clone(), name, index })
            }
        }
    }
}

impl Module {
    /// The modules that an adapter changes, in the order of the base's parameters; `path` is named in errors.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a target that is none of the projections of the base.
    pub(crate) fn of(
        config: &AdapterConfig,
        base: &ModelConfig,
        path: &Path,
    ) -> Result<Vec<Self>, ModelError> {
        let mut modules = Vec::new();
        let mut used = BTreeSet::new();
        for parameter in parameters(base) {
            let kind = parameter.kind;
            if !matches!(kind, Kind::Qkv(_) | Kind::AttentionOutput(_) | Kind::GateUp(_) | Kind::Down(_)) {
                continue;
            }
            for piece in &parameter.pieces {
                let name = piece.name.trim_end_matches(".weight");
                let is_named = |target: &&String| {
                    name.strip_suffix(target.as_str())
                        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
                };
                let targets: Vec<&String> = config.target_modules.iter().filter(is_named).collect();
                if targets.is_empty() {
                    continue;
                }
                used.extend(targets);
                let factor = |index: usize, part: &str, shape: [usize; 2]| {
                    let name = format!("base_model.model.{name}.lora_{part}.weight");
                    Parameter::alone(Kind::Factor(index), name, shape.to_vec())
                };
                let [n_out, n_in] = [piece.shape[0], piece.shape[1]];
                let first = 2 * modules.len();
                modules.push(Self {
                    kind,
                    first_column: piece.first_column,
                    factors: [
                        factor(first, "A", [config.rank, n_in]),
                        factor(first + 1, "B", [n_out, config.rank]),
                    ],
                });
            }
        }
        match config.target_modules.iter().find(|target| !used.contains(target)) {
            None => Ok(modules),
            Some(target) => Err(ModelError::Unsupported {
                path: path.into(),
                key: "target_modules".into(),
                value: target.clone(),
            }),
        }
    }

    /// Number of columns in the fused matrix.
    pub(crate) fn n_outputs(&self) -> usize {
        self.factors[1].shape[0]
    }
}

/// Values of the factors of one module.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// `(rank, in)`.
    pub(crate) a: &'a [f32],
    /// `(out, rank)`.
    pub(crate) b: &'a [f32],
    /// What their product is multiplied by.
    pub(crate) scale: f32,
}

/// Adds `scale * (B A)`, transposed, to a module's columns of a fused matrix with rows of `stride` elements.
///
/// An element of the product is summed over the rank in order, multiplied by the scale, and added: the same bits on any
/// number of threads.
pub(crate) fn add_low_rank(values: &mut [f32], stride: usize, module: &Module, factors: Factors<'_>) {
    let Factors { a, b, scale } = factors;
    let ([rank, n_in], n_out) =
        ([module.factors[0].shape[0], module.factors[0].shape[1]], module.n_outputs());
    let columns = module.first_column..module.first_column + n_out;
    let block_rows = (TERM_BLOCK / n_out).clamp(1, n_in);
    let mut term = vec![0.0; block_rows * n_out];
    for (block, rows) in values.chunks_mut(block_rows * stride).enumerate() {
        let n_rows = rows.len() / stride;
        let term = &mut term[..n_rows * n_out];
        let left = Left { values: &a[block * block_rows..], row_stride: 1, depth_stride: n_in };
        let sizes = Sizes { n_rows, depth: rank, width: n_out };
        product(left, Right::Transposed { values: b }, sizes, false, term);
        rows.par_chunks_exact_mut(stride).zip(term.par_chunks_exact(n_out)).for_each(|(row, term)| {
            row[columns.clone()].iter_mut().zip(term).for_each(|(value, term)| *value += scale * term);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_added_to_the_columns_of_its_module() {
        // Rank 1, 2 inputs, 3 outputs in columns 1 to 3 of 4: A = [2, 3], B = [1, 10, 100], scale 0.5.
        let module = Module {
            kind: Kind::Qkv(0),
            first_column: 1,
            factors: [
                Parameter::alone(Kind::Factor(0), "a".into(), vec![1, 2]),
                Parameter::alone(Kind::Factor(1), "b".into(), vec![3, 1]),
            ],
        };
        let mut values = vec![7.0; 8];
        add_low_rank(&mut values, 4, &module, Factors { a: &[2.0, 3.0], b: &[1.0, 10.0, 100.0], scale: 0.5 });
        assert_eq!(values, [7.0, 8.0, 17.0, 107.0, 7.0, 8.5, 22.0, 157.0]);
    }
}
