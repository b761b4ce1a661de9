use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Adapter, AdapterConfig, Module};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::{LoadedParameter, StoredDtype};

/// What messages call the settings of a new adapter: the section of a run's configuration that they stand in.
const SETTINGS: &str = "[lora]";

/// An adapter to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAdapter {
    /// What it is; its `base` is what the saved adapter will name.
    pub config: AdapterConfig,
    /// Seed of the values of `A`.
    pub seed: [u8; 32],
}

impl NewAdapter {
    /// The adapter before its first step: `B` is zero, so the model is its base, and `A` is uniform between plus and
    /// minus `1 / sqrt(in)`, as PEFT's default is. A value depends on the seed, the tensor's name and its place in it.
    ///
    /// # Errors
    /// As [`NewAdapter::modules`].
    pub(crate) fn begin(&self, base: &ModelConfig) -> Result<Adapter, ModelError> {
        let modules = self.modules(base)?;
        let factors = modules.iter().flat_map(|module| {
            let [a, b] = module.factors.clone();
            let bound = 1.0 / (a.shape[1] as f64).sqrt();
            let values = [uniform(&self.seed, &a.pieces[0].name, bound, a.len()), vec![0.0; b.len()]];
            [a, b].into_iter().zip(values)
        });
        let factors = factors
            .map(|(parameter, values)| LoadedParameter { parameter, dtype: StoredDtype::F32, values })
            .collect();
        Ok(Adapter { config: self.config.clone(), modules, factors, path: SETTINGS.into() })
    }

    /// The modules that it will change.
    ///
    /// # Errors
    /// [`ModelError::ConfigKey`] for a rank of 0, or an alpha that is not above 0 or makes no weight in 32 bits;
    /// [`ModelError::Unsupported`] for an unknown target.
    pub(crate) fn modules(&self, base: &ModelConfig) -> Result<Vec<Module>, ModelError> {
        let (config, path) = (&self.config, Path::new(SETTINGS));
        let impossible = |key: &str, problem: &str| {
            Err(ModelError::ConfigKey { path: path.into(), key: key.into(), problem: problem.into() })
        };
        if config.rank == 0 {
            return impossible("r", "is not above 0");
        }
        if config.alpha <= 0.0 {
            return impossible("lora_alpha", "is not above 0");
        }
        if let Some(problem) = config.problem_of_scale() {
            return impossible("lora_alpha", problem);
        }
        Module::of(config, base, path)
    }
}

/// Values between plus and minus `bound`, from a stream of its own for each name.
fn uniform(seed: &[u8; 32], name: &str, bound: f64, n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::from_seed(*blake3::keyed_hash(seed, name.as_bytes()).as_bytes());
    let mut draw = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    (0..n).map(|_| (bound * (2.0 * draw() - 1.0)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_uniform_and_follow_from_seed_and_name() {
        let values = uniform(&[7; 32], "a", 0.5, 100_000);
        let n = values.len() as f64;
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n;
        // Variance is 0.5^2 / 3 = 0.08333; standard errors are 0.289 / sqrt(n) = 0.0009 and 0.0745 / sqrt(n) = 0.00024.
        assert!(mean.abs() < 0.004 && (square - 0.083_33).abs() < 0.001, "{mean} {square}");
        assert!(values.iter().all(|x| x.abs() <= 0.5));
        assert_eq!(values[..100], uniform(&[7; 32], "a", 0.5, 100));
        assert_ne!(values[..100], uniform(&[7; 32], "b", 0.5, 100));
        assert_ne!(values[..100], uniform(&[8; 32], "a", 0.5, 100));
    }
}
