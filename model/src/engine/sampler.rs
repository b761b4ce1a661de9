use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::request::Sampling;
use crate::LogSoftmax;

/// The number in [0, 1) that a position of a generation draws: the top 53 bits of the 64-bit word at that position in
/// the ChaCha8 stream of the seed.
pub fn uniform(seed: [u8; 32], position: usize) -> f64 {
    let mut stream = ChaCha8Rng::from_seed(seed);
    stream.set_word_pos(2 * position as u128);
    (stream.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Buffers that are used again from token to token.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    probabilities: Vec<f32>,
    order: Vec<u32>,
}

/// Draws a token from a row of logits; `None` where the logits are no distribution (NaN, infinity, nothing).
///
/// Returns the token and its logprob before filters. All sums run in 64 bits and in a fixed order.
pub(super) fn sample(
    logits: &[f32],
    sampling: &Sampling,
    uniform: f64,
    scratch: &mut Scratch,
) -> Option<(u32, f32)> {
    if logits.is_empty() {
        return None;
    }
    let row = LogSoftmax::new(logits, sampling.temperature);
    let token = if sampling.temperature == 0.0 {
        likeliest(logits)
    } else {
        row.write_probabilities(logits, &mut scratch.probabilities);
        let is_filtered =
            sampling.top_p < 1.0 || (sampling.top_k > 0 && (sampling.top_k as usize) < logits.len());
        if is_filtered {
            let kept = filter(&scratch.probabilities, sampling, &mut scratch.order);
            let mut kept: Vec<u32> = kept.to_vec();
            kept.sort_unstable();
            draw(kept.into_iter().map(|id| (id, probability(&scratch.probabilities, id))), uniform)
        } else {
            draw((0u32..).zip(scratch.probabilities.iter().copied()), uniform)
        }
    };
    let token = token?;
    let logprob = row.logprob(*logits.get(token as usize)?);
    logprob.is_finite().then_some((token, logprob))
}

fn likeliest(logits: &[f32]) -> Option<u32> {
    let best = (0u32..).zip(logits.iter().copied());
    best.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(id, _)| id)
}

fn probability(probabilities: &[f32], id: u32) -> f32 {
    probabilities.get(id as usize).copied().unwrap_or_default()
}

/// The tokens that `top_k` and then `top_p` keep, likeliest first; of equals the lower id comes first.
fn filter<'a>(probabilities: &[f32], sampling: &Sampling, order: &'a mut Vec<u32>) -> &'a [u32] {
    order.clear();
    order.extend((0u32..).zip(probabilities).map(|(id, _)| id));
    let by_probability = |a: &u32, b: &u32| {
        let (a_share, b_share) = (probability(probabilities, *a), probability(probabilities, *b));
        b_share.total_cmp(&a_share).then(a.cmp(b))
    };
    let k = sampling.top_k as usize;
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, by_probability);
        order.truncate(k);
    }
    order.sort_unstable_by(by_probability);
    if sampling.top_p < 1.0 {
        let total: f64 = order.iter().map(|&id| f64::from(probability(probabilities, id))).sum();
        let enough = f64::from(sampling.top_p) * total;
        let mut sum = 0.0;
        let mut n_kept = order.len();
        for (index, &id) in order.iter().enumerate() {
            sum += f64::from(probability(probabilities, id));
            if sum >= enough {
                n_kept = index + 1;
                break;
            }
        }
        order.truncate(n_kept);
    }
    order
}

/// The first token at which the running sum of probabilities exceeds `uniform` of their total.
fn draw(tokens: impl Iterator<Item = (u32, f32)> + Clone, uniform: f64) -> Option<u32> {
    let total: f64 = tokens.clone().map(|(_, share)| f64::from(share)).sum();
    if !(total > 0.0 && total.is_finite()) {
        return None;
    }
    let target = uniform * total;
    let mut sum = 0.0;
    let mut last = None;
    for (id, share) in tokens {
        if share > 0.0 {
            sum += f64::from(share);
            last = Some(id);
            if sum > target {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of the probabilities 1/8, 4/8, 1/8, 2/8.
    fn row() -> Vec<f32> {
        [1.0_f32, 4.0, 1.0, 2.0].iter().map(|share| share.ln()).collect()
    }

    fn sampling(temperature: f32, top_p: f32, top_k: u32) -> Sampling {
        Sampling { temperature, top_p, top_k }
    }

    fn token(settings: Sampling, uniform: f64) -> u32 {
        sample(&row(), &settings, uniform, &mut Scratch::default()).unwrap().0
    }

    #[test]
    fn draws_by_hand() {
        // (settings, uniform, token). Running sums without filters: 0.125, 0.625, 0.75, 1.
        let cases = [
            (sampling(1.0, 1.0, 0), 0.0, 0),
            (sampling(1.0, 1.0, 0), 0.124, 0),
            (sampling(1.0, 1.0, 0), 0.126, 1),
            (sampling(1.0, 1.0, 0), 0.624, 1),
            (sampling(1.0, 1.0, 0), 0.626, 2),
            (sampling(1.0, 1.0, 0), 0.999, 3),
            // The two likeliest are 1 (4/6) and 3 (2/6).
            (sampling(1.0, 1.0, 2), 0.0, 1),
            (sampling(1.0, 1.0, 2), 0.66, 1),
            (sampling(1.0, 1.0, 2), 0.67, 3),
            // Three likeliest: of the equal 0 and 2 the lower id; in order of id 0 (1/7), 1 (5/7), 3.
            (sampling(1.0, 1.0, 3), 0.14, 0),
            (sampling(1.0, 1.0, 3), 0.72, 3),
            // 0.5 alone reaches top_p 0.5; 0.51 needs token 3 as well; top_p after top_k: 4/6 reaches 0.6.
            (sampling(1.0, 0.5, 0), 0.99, 1),
            (sampling(1.0, 0.51, 0), 0.99, 3),
            (sampling(1.0, 0.6, 2), 0.99, 1),
            // At temperature 1/2: 1/22, 16/22, 1/22, 4/22; running sums 0.045, 0.773, 0.818, 1.
            (sampling(0.5, 1.0, 0), 0.77, 1),
            (sampling(0.5, 1.0, 0), 0.78, 2),
            (sampling(0.0, 1.0, 0), 0.99, 1),
        ];
        for (settings, uniform, expected) in cases {
            assert_eq!(token(settings, uniform), expected, "{settings:?} at {uniform}");
        }
    }

    #[test]
    fn logprobs_ignore_filters_and_take_the_temperature() {
        let logprob = |settings| sample(&row(), &settings, 0.5, &mut Scratch::default()).unwrap().1;
        assert!((logprob(sampling(1.0, 0.5, 1)) - 0.5_f32.ln()).abs() < 1e-6);
        assert!((logprob(sampling(0.5, 1.0, 0)) - (16.0_f32 / 22.0).ln()).abs() < 1e-6);
        // Greedy: at temperature 1.
        assert!((logprob(sampling(0.0, 1.0, 0)) - 0.5_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            for temperature in [0.0, 1.0] {
                let logits = [0.0, bad, 1.0];
                let settings = sampling(temperature, 1.0, 0);
                assert_eq!(
                    sample(&logits, &settings, 0.5, &mut Scratch::default()),
                    None,
                    "{bad} {temperature}"
                );
                let settings = sampling(temperature, 0.9, 2);
                assert_eq!(
                    sample(&logits, &settings, 0.5, &mut Scratch::default()),
                    None,
                    "{bad} {temperature}"
                );
            }
        }
        let never = [f32::NEG_INFINITY, 0.0];
        assert_eq!(sample(&never, &sampling(1.0, 1.0, 0), 0.0, &mut Scratch::default()).unwrap().0, 1);
        assert_eq!(sample(&[], &sampling(1.0, 1.0, 0), 0.0, &mut Scratch::default()), None);
    }

    #[test]
    fn uniforms_depend_on_seed_and_position_alone() {
        // The stream of ChaCha with 8 rounds, key and nonce zero, starts with the bytes 3e 00 ef 2f 89 5f 40 d6
        // (the eSTREAM test vectors): the little-endian word 0xd6405f892fef003e.
        let expected = (0xd640_5f89_2fef_003e_u64 >> 11) as f64 / 2f64.powi(53);
        assert_eq!(uniform([0; 32], 0), expected);
        let drawn: Vec<f64> = (0..200).map(|position| uniform([7; 32], position)).collect();
        let again: Vec<f64> = (0..200).rev().map(|position| uniform([7; 32], position)).collect();
        assert!(drawn.iter().eq(again.iter().rev()));
        assert!(drawn.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = drawn.iter().sum::<f64>() / 200.0;
        // Deviation of the mean: 1 / sqrt(12 * 200) = 0.02.
        assert!((mean - 0.5).abs() < 0.1, "{mean}");
    }
}
