//! The exponential function, written so that the compiler turns a loop over it into vector code.

/// Below this the result is exactly zero.
const LOWEST: f32 = -87.336_54;
/// Above this the result stays at about 1.7e38.
const HIGHEST: f32 = 88.0;

/// Returns `e^x`: within 2 units in the last place for `x` in -87.3 to 88, zero below, NaN for NaN.
///
/// # Source
/// Range reduction by a two-part ln 2 and the minimax polynomial of Cephes `expf`; the rounding is done by adding
/// `1.5 * 2^23`, whose low mantissa bits then hold the integer.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let is_zero = x < LOWEST;
    let x = if x < LOWEST { LOWEST } else { x };
    let x = if x > HIGHEST { HIGHEST } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 0.166_666_65);
    p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if is_zero { 0.0 } else { p * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_within_two_units_of_the_exact_value() {
        // Witness: the f64 exponential of the standard library, over 200,001 points from -87.3 to 88.
        let mut worst = 0.0_f64;
        for i in 0..=200_000 {
            let x = -87.3 + 175.3 * (i as f32 / 200_000.0);
            let exact = f64::from(x).exp();
            let unit = exact * f64::from(f32::EPSILON);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst < 1.5, "units: {worst}");
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert!(exp(1000.0).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}
