//! The optimizer's loop.

use super::vectorized;

/// Numbers of one AdamW step that are the same for all elements of a parameter.
#[derive(Debug, Clone, Copy)]
pub struct AdamWStep {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// What weight decay leaves of a weight.
    pub keep: f32,
    /// Learning rate over the first moment's bias correction.
    pub rate: f32,
    /// One over the root of the second moment's bias correction.
    pub inverse_root: f32,
    /// What the gradient is multiplied with first.
    pub gradient_scale: f32,
}

/// Updates weights and moments in place; all slices have one length.
pub fn adamw_step(
    step: AdamWStep,
    weights: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    vectorized(
        #[inline(always)]
        |args| adamw_body(args),
        (step, weights, gradient, first, second),
    );
}

type Arguments<'a> = (AdamWStep, &'a mut [f32], &'a [f32], &'a mut [f32], &'a mut [f32]);

#[inline(always)]
fn adamw_body((step, weights, gradient, first, second): Arguments<'_>) {
    let n = weights.len();
    let (gradient, first, second) = (&gradient[..n], &mut first[..n], &mut second[..n]);
    for i in 0..n {
        let g = gradient[i] * step.gradient_scale;
        first[i] = step.beta1 * first[i] + (1.0 - step.beta1) * g;
        second[i] = step.beta2 * second[i] + (1.0 - step.beta2) * g * g;
        let root = second[i].sqrt() * step.inverse_root + step.eps;
        weights[i] = weights[i] * step.keep - step.rate * first[i] / root;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        // beta1 1/2, beta2 3/4, eps 0, rate 0.1, no decay; gradients 2, then -1.
        // Step 1: m = 1, v = 1; corrected m = 1/(1/2) = 2, v = 1/(1/4) = 4; w = 1 - 0.1 * 2/2 = 0.9.
        // Step 2: m = 0.5 - 0.5 = 0; w stays 0.9; v = 0.75 + 0.25 = 1.
        let step = |t: i32| AdamWStep {
            beta1: 0.5,
            beta2: 0.75,
            eps: 0.0,
            keep: 1.0,
            rate: 0.1 / (1.0 - 0.5_f32.powi(t)),
            inverse_root: 1.0 / (1.0 - 0.75_f32.powi(t)).sqrt(),
            gradient_scale: 1.0,
        };
        let (mut w, mut m, mut v) = ([1.0_f32], [0.0], [0.0]);
        adamw_step(step(1), &mut w, &[2.0], &mut m, &mut v);
        assert!((w[0] - 0.9).abs() < 1e-6 && m == [1.0] && v == [1.0], "{w:?} {m:?} {v:?}");
        adamw_step(step(2), &mut w, &[-1.0], &mut m, &mut v);
        assert!((w[0] - 0.9).abs() < 1e-6 && m == [0.0] && v == [1.0], "{w:?} {m:?} {v:?}");
    }
}
