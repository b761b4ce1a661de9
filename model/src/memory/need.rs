//! Memory by what it holds.

use std::fmt;

use super::Bytes;

/// Memory at the worst moment, by what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryNeed {
    /// What it is for and its bytes; parts of nothing are left out.
    pub parts: Vec<(&'static str, u64)>,
}

impl MemoryNeed {
    pub(super) fn of<const N: usize>(parts: [(&'static str, u64); N]) -> Self {
        Self { parts: parts.into_iter().filter(|(_, bytes)| *bytes > 0).collect() }
    }

    /// The sum in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Adds what is held at the same time; parts of one name become one.
    pub fn add(&mut self, other: Self) {
        for (what, bytes) in other.parts {
            match self.parts.iter_mut().find(|(name, _)| *name == what) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => self.parts.push((what, bytes)),
            }
        }
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.parts.iter().map(|(what, bytes)| format!("{what} {}", Bytes(*bytes))).collect();
        write!(f, "{}: {}", Bytes(self.total()), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_readable() {
        let mut need = MemoryNeed::of([("weights", 2_384_000_000), ("nothing", 0), ("logits", 155_600_000)]);
        assert_eq!(need.to_string(), "2.5 GB: weights 2.4 GB, logits 156 MB");
        need.add(MemoryNeed::of([("logits", 400_000), ("more", 5_400)]));
        assert_eq!(need.to_string(), "2.5 GB: weights 2.4 GB, logits 156 MB, more 5 kB");
    }
}
