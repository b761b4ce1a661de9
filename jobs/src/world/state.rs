use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything the service desk knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Team of each person.
    pub users: BTreeMap<String, String>,
    /// Orders by id.
    pub orders: BTreeMap<String, Order>,
    /// Devices by name.
    pub devices: BTreeMap<String, Device>,
    /// Tickets by id.
    pub tickets: BTreeMap<String, Ticket>,
    /// Ids that new tickets get, in this order.
    pub free_tickets: Vec<String>,
    /// Team that escalated tickets go to today.
    pub team_on_duty: String,
}

/// Something that was bought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Who bought it.
    pub user: String,
    /// What it is.
    pub item: String,
    /// Its price.
    pub amount: u32,
    /// `open`, `shipped`, `delivered`, `canceled` or `refunded`.
    pub status: String,
}

/// A device of a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Whose it is.
    pub owner: String,
    /// `broken` or `works`.
    pub status: String,
}

/// A request that someone works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// Who asked.
    pub user: String,
    /// The device it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What it is about, if that was stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// `low` or `high`.
    pub priority: String,
    /// `open`, `closed` or `escalated`.
    pub status: String,
    /// Team it was escalated to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
}

/// One place in which two states differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// JSON pointer into the state.
    pub path: String,
    /// The value that should be there; `null`: none.
    pub expected: Value,
    /// The value that is there; `null`: none.
    pub found: Value,
}

/// The places, in order, in which `found` differs from `expected`.
pub(super) fn differences(expected: &State, found: &State) -> Vec<Difference> {
    let (Ok(expected), Ok(found)) = (serde_json::to_value(expected), serde_json::to_value(found)) else {
        return Vec::new(); // Unreachable: all keys are texts.
    };
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    leaves(String::new(), &expected, &mut left);
    leaves(String::new(), &found, &mut right);
    let mut paths: Vec<&String> = left.keys().chain(right.keys()).collect();
    paths.sort();
    paths.dedup();
    let value =
        |side: &BTreeMap<String, Value>, path: &String| side.get(path).cloned().unwrap_or(Value::Null);
    paths
        .into_iter()
        .filter(|path| left.get(*path) != right.get(*path))
        .map(|path| Difference {
            path: path.clone(),
            expected: value(&left, path),
            found: value(&right, path),
        })
        .collect()
}

/// Adds the values that are no objects, by their path. Names of the world hold no `/` and no `~`; if a call
/// brought one in, the paths stay distinct enough to show a difference.
fn leaves(path: String, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                leaves(format!("{path}/{key}"), value, into);
            }
        }
        _ => {
            into.insert(path, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_each_changed_added_and_missing_value() {
        let mut expected = State::default();
        expected.users.insert("Alma".into(), "sales".into());
        expected.users.insert("Boris".into(), "legal".into());
        expected.team_on_duty = "network".into();
        let mut found = State::default();
        found.users.insert("Alma".into(), "design".into());
        found.users.insert("Cara".into(), "sales".into());
        found.team_on_duty = "network".into();
        let expected_differences = vec![
            Difference { path: "/users/Alma".into(), expected: json!("sales"), found: json!("design") },
            Difference { path: "/users/Boris".into(), expected: json!("legal"), found: Value::Null },
            Difference { path: "/users/Cara".into(), expected: Value::Null, found: json!("sales") },
        ];
        assert_eq!(differences(&expected, &found), expected_differences);
        assert_eq!(differences(&expected, &expected), vec![]);
    }
}
