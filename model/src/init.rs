//! Random initial weights.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::checkpoint::{WEIGHTS_FILE, sync_folder, write_synced};
use crate::config::{CONFIG_FILE, ModelConfig};
use crate::error::ModelError;
use crate::weights::{OutputTensor, Source, StoredDtype, parameters, write_safetensors};

/// Standard deviation of the initial weights.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum InitScale {
    /// `1 / sqrt(hidden_size)`: what small models need to learn at all.
    #[default]
    InverseSqrtHidden,
    /// A number, such as the customary 0.02.
    Fixed(f64),
}

/// Writes a model folder with `config.json` and random weights in the format that the configuration's `dtype` (or
/// `torch_dtype`) names, else in `bf16`.
///
/// Matrices are normal with mean 0, norms 1, biases 0. Each tensor has a ChaCha8 stream of its own, so the values
/// depend on the seed, the tensor's place in the architecture and its shape.
///
/// # Errors
/// [`ModelError::Unsupported`] for another format; [`ModelError::Write`] on the files.
pub fn random(config: &ModelConfig, dir: &Path, seed: [u8; 32], scale: InitScale) -> Result<(), ModelError> {
    let dtype = stored_dtype(config, dir)?;
    let deviation = match scale {
        InitScale::InverseSqrtHidden => 1.0 / (config.hidden_size as f64).sqrt(),
        InitScale::Fixed(deviation) => deviation,
    };
    fs_err::create_dir_all(dir).map_err(|source| ModelError::Write { path: dir.into(), source })?;
    let parameters = parameters(config);
    let values: Vec<Vec<f32>> = parameters
        .iter()
        .enumerate()
        .map(|(stream, parameter)| match parameter.fill() {
            Some(value) => vec![value; parameter.len()],
            None => normal(seed, stream as u64, deviation, parameter.len()),
        })
        .collect();
    let tensors = parameters.iter().zip(&values).flat_map(|(parameter, values)| {
        parameter.pieces.iter().map(move |piece| {
            let values: Source<'_> = Box::new(|| Ok(values.into()));
            (piece.name.clone(), OutputTensor { parameter, piece, values, dtype })
        })
    });
    write_safetensors(&dir.join(WEIGHTS_FILE), tensors, ("format", "pt".into()))?;
    let mut text = serde_json::to_string_pretty(&config.source)
        .map_err(|error| ModelError::invalid(format!("the configuration is not JSON: {error}")))?;
    text.push('\n');
    write_synced(&dir.join(CONFIG_FILE), text.as_bytes())?;
    sync_folder(dir)
}

fn stored_dtype(config: &ModelConfig, dir: &Path) -> Result<StoredDtype, ModelError> {
    let value =
        ["dtype", "torch_dtype"].iter().find_map(|key| Some((*key, config.source.get(*key)?.as_str()?)));
    match value {
        None | Some((_, "bfloat16")) => Ok(StoredDtype::Bf16),
        Some((_, "float16")) => Ok(StoredDtype::F16),
        Some((_, "float32")) => Ok(StoredDtype::F32),
        Some((key, other)) => {
            Err(ModelError::Unsupported { path: dir.join(CONFIG_FILE), key: key.into(), value: other.into() })
        }
    }
}

/// Normal values by the Box-Muller transform.
fn normal(seed: [u8; 32], stream: u64, deviation: f64, n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::from_seed(seed);
    rng.set_stream(stream);
    // Uniform in (0, 1]: 53 bits, never zero, so that the logarithm is finite.
    let mut uniform = || ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let mut values = Vec::with_capacity(n + 1);
    while values.len() < n {
        let radius = deviation * (-2.0 * uniform().ln()).sqrt();
        let (sin, cos) = (2.0 * std::f64::consts::PI * uniform()).sin_cos();
        values.push((radius * cos) as f32);
        values.push((radius * sin) as f32);
    }
    values.truncate(n);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_asked_deviation() {
        let values = normal([7; 32], 3, 0.5, 100_001);
        let n = values.len() as f64;
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        // Standard errors: 0.5 / sqrt(n) = 0.0016 and 0.5 / sqrt(2 n) = 0.0011.
        assert!(mean.abs() < 0.007, "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.005, "{variance}");
        assert_ne!(values, normal([7; 32], 4, 0.5, 100_001));
        assert_eq!(values, normal([7; 32], 3, 0.5, 100_001));
    }
}
