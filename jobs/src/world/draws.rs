//! Random draws that are a function of (seed, split, index) alone.

use super::Split;

/// The draws of one task, in order.
#[derive(Debug)]
pub(super) struct Draws {
    stream: blake3::OutputReader,
}

impl Draws {
    /// The draws of task `index` of `split` in the set made from `seed`.
    pub fn new(seed: u64, split: Split, index: u64) -> Self {
        Self::keyed("envace service desk tasks, version 1", seed, split, index)
    }

    /// The draws that say where the operator of a recorded dialogue slips; apart from [`Draws::new`], so that
    /// they change nothing else of the task.
    pub fn of_slips(seed: u64, split: Split, index: u64) -> Self {
        Self::keyed("envace service desk slips, version 1", seed, split, index)
    }

    fn keyed(context: &str, seed: u64, split: Split, index: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&seed.to_le_bytes()).update(&[split as u8]).update(&index.to_le_bytes());
        Self { stream: hasher.finalize_xof() }
    }

    /// A number in `0..n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let mut bytes = [0; 8];
        self.stream.fill(&mut bytes);
        // The bias of a 64-bit multiply-shift is below n / 2^64.
        ((u128::from(u64::from_le_bytes(bytes)) * n as u128) >> 64) as usize
    }

    /// Whether an event of probability `percent` / 100 happens.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// `first` or one of `others`, each as likely as the rest.
    pub fn one_of<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        match self.below(others.len() + 1).checked_sub(1) {
            None => first,
            Some(index) => others.get(index).copied().unwrap_or(first),
        }
    }

    /// One of `choices`, or the default value if there are none.
    pub fn pick<T: Copy + Default>(&mut self, choices: &[T]) -> T {
        let index = self.below(choices.len());
        choices.get(index).copied().unwrap_or_default()
    }
}
