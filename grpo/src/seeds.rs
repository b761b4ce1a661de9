//! Randomness as a function: what is drawn depends on where it is drawn, never on what was drawn before.

/// Where a random draw is made. Equal coordinates give equal draws on every machine, in any order.
///
/// A coordinate that is not set is left out of the encoding, so it differs from every value; a coordinate
/// added in a later version does not change the draws that do not use it.
///
/// # Encoding
/// BLAKE3 over the frames `"envace draw 1"`, then for each set coordinate, in the order of the setters
/// below, its name and its value. A frame is the length in bytes as a little-endian `u64`, then the bytes; an
/// integer is its eight little-endian bytes, a text its UTF-8. Checked against `tests/golden/seeds.json`,
/// written by `seeds.py`.
///
/// # Example
/// ```
/// use envace_grpo::seeds::Draw;
/// let draw = Draw::new(7, "generate").step(3).task_hash("ab12").sample(0).role("actor").turn(2);
/// assert_eq!(draw.seed(), draw.clone().seed());
/// assert_ne!(draw.seed(), draw.clone().sample(1).seed());
/// assert!((0.0..1.0).contains(&draw.uniform(0)));
/// ```
#[derive(Debug, Clone)]
pub struct Draw {
    /// Value of each coordinate, in the order of [`NAMES`].
    coordinates: [Option<Coordinate>; NAMES.len()],
}

#[derive(Debug, Clone)]
enum Coordinate {
    Number(u64),
    Text(String),
}

const NAMES: [&str; 13] = [
    "run_seed",
    "purpose",
    "step",
    "task_hash",
    "sample",
    "trial",
    "role",
    "user_turn",
    "turn",
    "call",
    "attempt",
    "vote",
    "position",
];

impl Draw {
    /// A draw of the run with this seed, made for `purpose`, such as `generate` or `task_order`.
    pub fn new(run_seed: u64, purpose: &str) -> Self {
        let draw = Self { coordinates: [const { None }; NAMES.len()] };
        draw.with(0, Coordinate::Number(run_seed)).with(1, Coordinate::Text(purpose.to_owned()))
    }

    /// Sets the step of the run.
    #[must_use]
    pub fn step(self, step: u64) -> Self {
        self.with(2, Coordinate::Number(step))
    }

    /// Sets the task, by its hash.
    #[must_use]
    pub fn task_hash(self, task_hash: &str) -> Self {
        self.with(3, Coordinate::Text(task_hash.to_owned()))
    }

    /// Sets the 0-based index in the group.
    #[must_use]
    pub fn sample(self, sample: u64) -> Self {
        self.with(4, Coordinate::Number(sample))
    }

    /// Sets the 0-based trial of an evaluation.
    #[must_use]
    pub fn trial(self, trial: u64) -> Self {
        self.with(5, Coordinate::Number(trial))
    }

    /// Sets the role that speaks.
    #[must_use]
    pub fn role(self, role: &str) -> Self {
        self.with(6, Coordinate::Text(role.to_owned()))
    }

    /// Sets the 0-based user turn.
    #[must_use]
    pub fn user_turn(self, user_turn: u64) -> Self {
        self.with(7, Coordinate::Number(user_turn))
    }

    /// Sets the 0-based turn in the trajectory.
    #[must_use]
    pub fn turn(self, turn: u64) -> Self {
        self.with(8, Coordinate::Number(turn))
    }

    /// Sets the 0-based call in the turn.
    #[must_use]
    pub fn call(self, call: u64) -> Self {
        self.with(9, Coordinate::Number(call))
    }

    /// Sets the 0-based attempt at one answer.
    #[must_use]
    pub fn attempt(self, attempt: u64) -> Self {
        self.with(10, Coordinate::Number(attempt))
    }

    /// Sets the 0-based vote of a judge.
    #[must_use]
    pub fn vote(self, vote: u64) -> Self {
        self.with(11, Coordinate::Number(vote))
    }

    /// Sets the 0-based position in a list or text.
    #[must_use]
    pub fn position(self, position: u64) -> Self {
        self.with(12, Coordinate::Number(position))
    }

    /// The 32 bytes that belong to these coordinates: the seed of a generator, or the key of the draws below.
    pub fn seed(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        update_framed(&mut hasher, b"envace draw 1");
        for (name, coordinate) in NAMES.iter().zip(&self.coordinates) {
            let Some(coordinate) = coordinate else { continue };
            update_framed(&mut hasher, name.as_bytes());
            match coordinate {
                Coordinate::Number(number) => update_framed(&mut hasher, &number.to_le_bytes()),
                Coordinate::Text(text) => update_framed(&mut hasher, text.as_bytes()),
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Number `index` of this draw's stream of uniform 64-bit integers.
    ///
    /// It is the first eight bytes, little-endian, of BLAKE3 keyed with [`seed`](Self::seed) over the eight
    /// little-endian bytes of `index`.
    pub fn bits(&self, index: u64) -> u64 {
        bits_of(&self.seed(), index)
    }

    /// A number in `[0, 1)`: the upper 53 bits of [`bits`](Self::bits) over 2^53, exact.
    pub fn uniform(&self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `0..n`, and 0 if `n` is 0: the upper 64 bits of `bits(index) * n`.
    ///
    /// No number is likelier than another by more than `n / 2^64`.
    pub fn below(&self, n: u64, index: u64) -> u64 {
        below_of(&self.seed(), n, index)
    }

    /// Puts `items` in random order: Fisher and Yates from the end, item `i` changing place with
    /// `below(i + 1, i)`.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        let seed = self.seed();
        for i in (1..items.len()).rev() {
            let i_wide = i as u64;
            // The result is at most `i`, which fits.
            items.swap(i, below_of(&seed, i_wide + 1, i_wide) as usize);
        }
    }

    fn with(mut self, index: usize, coordinate: Coordinate) -> Self {
        if let Some(slot) = self.coordinates.get_mut(index) {
            *slot = Some(coordinate);
        }
        self
    }
}

fn bits_of(seed: &[u8; 32], index: u64) -> u64 {
    let hash = blake3::keyed_hash(seed, &index.to_le_bytes());
    hash.as_bytes().iter().take(8).rev().fold(0, |bits, byte| (bits << 8) | u64::from(*byte))
}

fn below_of(seed: &[u8; 32], n: u64, index: u64) -> u64 {
    ((u128::from(bits_of(seed, index)) * u128::from(n)) >> 64) as u64
}

fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn full() -> Draw {
        Draw::new(1, "p")
            .step(2)
            .task_hash("t")
            .sample(3)
            .trial(4)
            .role("actor")
            .user_turn(5)
            .turn(6)
            .call(7)
            .attempt(8)
            .vote(9)
            .position(10)
    }

    #[test]
    fn every_coordinate_counts_and_zero_is_not_absence() {
        let variants = [
            full(),
            full().step(0),
            full().task_hash("u"),
            full().sample(0),
            full().trial(0),
            full().role("rehearsal"),
            full().user_turn(0),
            full().turn(0),
            full().call(0),
            full().attempt(0),
            full().vote(0),
            full().position(0),
            Draw::new(1, "p"),
            Draw::new(1, "p").step(0),
            Draw::new(1, "p").sample(0),
            Draw::new(2, "p"),
            Draw::new(1, "q"),
            // Same bytes in a row, other borders.
            Draw::new(1, "p").task_hash("ab").role("c"),
            Draw::new(1, "p").task_hash("a").role("bc"),
        ];
        let seeds: BTreeSet<_> = variants.iter().map(Draw::seed).collect();
        assert_eq!(seeds.len(), variants.len());
        assert_eq!(full().step(9).step(2).seed(), full().seed(), "the last value set counts");
    }

    #[test]
    fn draws_are_even() {
        let draw = Draw::new(11, "test");
        let n = 10_000_u32;
        let mean = (0..n).map(|i| draw.uniform(u64::from(i))).sum::<f64>() / f64::from(n);
        // Standard error 1 / sqrt(12 n) = 0.0029; four of them.
        assert!((mean - 0.5).abs() < 0.0116, "{mean}");
        let mut counts = [0_u32; 5];
        for i in 0..n {
            counts[draw.below(5, u64::from(i)) as usize] += 1;
        }
        // Deviation sqrt(10000 * 0.2 * 0.8) = 40; four of them.
        assert!(counts.iter().all(|count| count.abs_diff(2_000) < 160), "{counts:?}");
        assert_eq!(draw.below(0, 3), 0);
        assert_eq!(draw.below(1, 3), 0);
    }

    #[test]
    fn shuffling_keeps_every_item_and_reaches_every_order() {
        let mut orders = BTreeSet::new();
        for run_seed in 0..200 {
            let mut items = [0, 1, 2, 3];
            Draw::new(run_seed, "test").shuffle(&mut items);
            let mut sorted = items;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            orders.insert(items);
        }
        // 24 orders; one is missed with probability 24 (23/24)^200 = 0.005, and the seeds are fixed.
        assert_eq!(orders.len(), 24);
    }
}
