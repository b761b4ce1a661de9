use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An exact decimal with nine digits after the point: the type of rewards and weights.
///
/// Sums of it do not depend on their order, so a baseline has the same bits whatever the partitions, the
/// threads or the SIMD width. In Arrow and Parquet it is `Decimal128(18, 9)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Decimal(i64);

/// A number that [`Decimal`] cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a decimal of at most 9 digits on either side of the point: {0}")]
pub struct DecimalError(String);

impl Decimal {
    /// Digits of the Arrow type, on both sides of the point together.
    pub const PRECISION: u8 = 18;
    /// Digits after the point.
    pub const SCALE: i8 = 9;
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// One.
    pub const ONE: Self = Self(Self::UNIT);
    const UNIT: i64 = 1_000_000_000;
    const LIMIT: i64 = 1_000_000_000_000_000_000;

    /// The decimal of `scaled` billionths; `None` at 10^9 and beyond.
    pub const fn from_scaled(scaled: i64) -> Option<Self> {
        if scaled > -Self::LIMIT && scaled < Self::LIMIT { Some(Self(scaled)) } else { None }
    }

    /// The value in billionths.
    pub const fn scaled(self) -> i64 {
        self.0
    }

    /// The nearest `f64`: one exact conversion and one division.
    pub fn to_f64(self) -> f64 {
        self.0 as f64 / Self::UNIT as f64
    }

    /// Rounds `value` to nine digits after the point, half away from zero.
    ///
    /// # Errors
    /// [`DecimalError`] if `value` is not finite or 10^9 and beyond.
    pub fn from_f64(value: f64) -> Result<Self, DecimalError> {
        let scaled = (value * Self::UNIT as f64).round();
        if scaled.abs() < Self::LIMIT as f64 {
            Ok(Self(scaled as i64))
        } else {
            Err(DecimalError(value.to_string()))
        }
    }

    /// The sum; `None` if it is 10^9 and beyond.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).and_then(Self::from_scaled)
    }

    /// `self / divisor`, rounded half away from zero; `None` if `divisor` is zero.
    ///
    /// `divisor` is a count, or another decimal's [`scaled`](Self::scaled) value over 10^9.
    pub fn checked_div(self, divisor: Self) -> Option<Self> {
        if divisor.0 == 0 {
            return None;
        }
        let numerator = i128::from(self.0) * i128::from(Self::UNIT);
        let denominator = i128::from(divisor.0);
        let half = denominator.abs() / 2;
        let adjust = if (numerator < 0) == (denominator < 0) { half } else { -half };
        // Moving the numerator by half a divisor towards its own sign turns truncation into rounding.
        let adjust = if denominator < 0 { -adjust } else { adjust };
        let rounded = (numerator + adjust) / denominator;
        i64::try_from(rounded).ok().and_then(Self::from_scaled)
    }

    /// The product, rounded half away from zero; `None` if it is 10^9 and beyond.
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        let product = i128::from(self.0) * i128::from(other.0);
        let unit = i128::from(Self::UNIT);
        let half = if product < 0 { -unit / 2 } else { unit / 2 };
        i64::try_from((product + half) / unit).ok().and_then(Self::from_scaled)
    }
}

impl From<i32> for Decimal {
    fn from(value: i32) -> Self {
        // |i32| * 10^9 is above the limit only beyond 10^9, which saturates.
        let limit = Self::LIMIT - 1;
        Self((i64::from(value) * Self::UNIT).clamp(-limit, limit))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = self.0.unsigned_abs();
        let unit = Self::UNIT.unsigned_abs();
        let text = format!("{sign}{}.{:09}", magnitude / unit, magnitude % unit);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let wrong = || DecimalError(text.to_owned());
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let fraction = fraction.trim_end_matches('0');
        if whole.is_empty()
            || whole.len() > 18
            || fraction.len() > 9
            || !is_digits(whole)
            || !is_digits(fraction)
        {
            return Err(wrong());
        }
        let whole: i64 = whole.parse().map_err(|_| wrong())?;
        let fraction: i64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
        let scaled = whole.checked_mul(Self::UNIT).and_then(|scaled| scaled.checked_add(fraction));
        let scaled = scaled.map(|scaled| if negative { -scaled } else { scaled });
        scaled.and_then(Self::from_scaled).ok_or_else(wrong)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Decimal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a decimal number, as a number or as text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Decimal, E> {
                Decimal::from_f64(value).map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Decimal, E> {
                value.to_string().parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Decimal, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor).map_err(|error| D::Error::custom(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn text_round_trips() {
        for (text, scaled, shown) in [
            ("0", 0, "0"),
            ("0.5", 500_000_000, "0.5"),
            ("-0.1", -100_000_000, "-0.1"),
            ("1.000000001", 1_000_000_001, "1.000000001"),
            ("12.500", 12_500_000_000, "12.5"),
        ] {
            assert_eq!(decimal(text).scaled(), scaled, "{text}");
            assert_eq!(decimal(text).to_string(), shown, "{text}");
        }
        for text in ["", ".5", "1e3", "0.0000000001", "1000000000", "--1", "1.2.3", "NaN", " 1"] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

    #[test]
    fn division_rounds_half_away_from_zero() {
        for (numerator, denominator, quotient) in [
            ("1", "3", "0.333333333"),
            ("2", "3", "0.666666667"),
            ("-2", "3", "-0.666666667"),
            ("2", "-3", "-0.666666667"),
            ("-2", "-3", "0.666666667"),
            ("0.000000001", "2", "0.000000001"),
            ("-0.000000001", "2", "-0.000000001"),
        ] {
            let result = decimal(numerator).checked_div(decimal(denominator));
            assert_eq!(result, Some(decimal(quotient)), "{numerator} / {denominator}");
        }
        assert_eq!(Decimal::ONE.checked_div(Decimal::ZERO), None);
    }

    proptest! {
        #[test]
        fn shown_and_parsed_is_the_same(scaled in -999_999_999_999_999_999_i64..1_000_000_000_000_000_000) {
            let value = Decimal::from_scaled(scaled).unwrap();
            prop_assert_eq!(value.to_string().parse::<Decimal>().unwrap(), value);
            let json = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(serde_json::from_str::<Decimal>(&json).unwrap(), value);
        }
    }
}
