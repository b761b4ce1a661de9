//! Rotary frequencies of a configuration.

use crate::config::{ModelConfig, RopeScaling};
use crate::ops::RopeAngles;

/// Inverse wavelengths, `head_dim / 2` of them, in radians a position.
pub(crate) struct RopeTable {
    frequencies: Vec<f32>,
}

impl RopeTable {
    /// Computes the frequencies of a configuration.
    ///
    /// # Source
    /// `theta^(-2i / head_dim)`, <https://arxiv.org/abs/2104.09864>; stretched by wavelength for Llama 3.1 as in its
    /// published code. Checked against golden logits.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let exponent = |i: usize| 2.0 * i as f64 / config.head_dim as f64;
        let frequencies = (0..config.head_dim / 2)
            .map(|i| stretched(config.rope_theta.powf(-exponent(i)), config.rope_scaling) as f32)
            .collect();
        Self { frequencies }
    }

    /// Cosine and sine for rows at these positions.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>) -> RopeAngles {
        let half = self.frequencies.len();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in &self.frequencies {
                // The angle is rounded to f32 as in the reference implementation.
                let (s, c) = f64::from(position as f32 * frequency).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        RopeAngles::new(cos, sin, half)
    }
}

fn stretched(frequency: f64, scaling: RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } = scaling else {
        return frequency;
    };
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < original_context / high_freq_factor {
        frequency
    } else if wavelength > original_context / low_freq_factor {
        frequency / factor
    } else {
        let share = (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - share) * frequency / factor + share * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_stretches_long_waves_only() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let wave = |length: f64| 2.0 * std::f64::consts::PI / length;
        assert_eq!(stretched(wave(100.0), scaling), wave(100.0));
        assert_eq!(stretched(wave(10_000.0), scaling), wave(10_000.0) / 8.0);
        // Wavelength 4096: the share is (2 - 1) / (4 - 1) = 1/3, so the factor is 2/3 / 8 + 1/3 = 5/12.
        assert!((stretched(wave(4096.0), scaling) / wave(4096.0) - 5.0 / 12.0).abs() < 1e-12);
    }
}
