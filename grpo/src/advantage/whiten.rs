//! Whitening over everything that a step has.

use std::collections::BTreeMap;

use super::group::{Advantage, UNIT, sample_deviation};
use super::rules::Role;

/// Centers the advantages of each pool and divides them by their deviation plus `epsilon`; `None` if a number does not fit.
///
/// They are rounded to a billionth first, so that no sum depends on their order.
pub(super) fn whiten(all: &mut [Advantage], pools: &[Option<Role>], epsilon: f64) -> Option<()> {
    let units = |value: f64| -> i128 { (value * UNIT as f64).round() as i128 };
    let mut of_pool: BTreeMap<Option<Role>, Vec<i128>> = BTreeMap::new();
    for (advantage, pool) in all.iter().zip(pools) {
        if let Ok(value) = advantage.outcome {
            of_pool.entry(*pool).or_default().push(units(value));
        }
    }
    let mut figures = BTreeMap::new();
    for (pool, values) in &of_pool {
        let deviation = if values.len() > 1 { sample_deviation(values)? } else { 0.0 };
        let deviation = (deviation > 0.0).then_some(deviation + epsilon);
        figures.insert(*pool, (values.iter().sum::<i128>(), values.len() as i128, deviation));
    }
    for (advantage, pool) in all.iter_mut().zip(pools) {
        let Some((sum, n, deviation)) = figures.get(pool) else { continue };
        if let Ok(value) = &mut advantage.outcome {
            let centered = (units(*value) * n - sum) as f64 / (n * UNIT) as f64;
            advantage.deviation = *deviation;
            *value = deviation.map_or(centered, |deviation| centered / deviation);
        }
    }
    Some(())
}
