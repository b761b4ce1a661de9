//! The tests that choose the case of a branch.

use serde_json::Value;

use super::values::same;
use crate::score::ValueTest;

/// Whether `value`, of a response, passes `test`; `None` where the response has no such value.
pub(super) fn passes(test: &ValueTest, value: Option<&Value>) -> bool {
    let number = value.and_then(Value::as_f64);
    match test {
        ValueTest::Is(expected) => value.is_some_and(|value| same(value, expected, false)),
        ValueTest::IsNot(expected) => value.is_some_and(|value| !same(value, expected, false)),
        ValueTest::OneOf(expected) => {
            value.is_some_and(|value| expected.iter().any(|expected| same(value, expected, false)))
        }
        ValueTest::AtMost(limit) => number.is_some_and(|number| number <= *limit),
        ValueTest::Above(limit) => number.is_some_and(|number| number > *limit),
        ValueTest::Exists(expected) => value.is_some() == *expected,
    }
}
