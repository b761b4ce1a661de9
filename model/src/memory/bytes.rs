//! Numbers of bytes in words.

use std::fmt;

/// A number of bytes as people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{:.1} GB", value / 1e9),
            1_000_000.. => write!(f, "{:.0} MB", value / 1e6),
            _ => write!(f, "{:.0} kB", value / 1e3),
        }
    }
}

/// A number of bytes, and the same in a unit if it is a large one.
pub(crate) struct Exactly(pub(crate) u64);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)?;
        if self.0 < KIB { Ok(()) } else { write!(f, " ({})", Setting(self.0)) }
    }
}

/// A number of bytes as a setting can be given: rounded up to a whole unit, so that it is enough.
pub(crate) struct Setting(pub(crate) u64);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = if self.0 < 10 * KIB * KIB { (KIB, "KiB") } else { (KIB * KIB, "MiB") };
        write!(f, "{} {name}", self.0.div_ceil(unit))
    }
}

const KIB: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_enough() {
        for (bytes, text) in [(1, "1 KiB"), (1_024, "1 KiB"), (404_480, "395 KiB"), (10 << 20, "10 MiB")] {
            assert_eq!(Setting(bytes).to_string(), text);
        }
        assert_eq!(Setting((11 << 20) + 1).to_string(), "12 MiB");
        assert_eq!(
            [Exactly(400), Exactly(20_480)].map(|size| size.to_string()),
            ["400 bytes", "20480 bytes (20 KiB)"]
        );
    }
}
