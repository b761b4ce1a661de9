//! Possible answers of single-turn prompts as expected calls.

use serde_json::{Map, Value};

use crate::score::{Argument, ExpectedCall};

/// Alternatives of one argument, written out, at most.
const MAX_ALTERNATIVES: usize = 256;

/// The calls of a ground truth: a list of objects `{function: {parameter: alternatives}}`.
pub(super) fn expected_calls(ground_truth: &Value) -> Result<Vec<ExpectedCall>, String> {
    let calls = ground_truth.as_array().ok_or_else(|| "its ground truth is no list".to_owned())?;
    calls.iter().map(expected_call).collect()
}

fn expected_call(call: &Value) -> Result<ExpectedCall, String> {
    let entries = call.as_object().filter(|entries| entries.len() == 1);
    let entry = entries.and_then(|entries| entries.iter().next());
    let Some((name, Value::Object(parameters))) = entry else {
        return Err("a call of its ground truth is no object of one function".to_owned());
    };
    let read = |(parameter, alternatives): (&String, &Value)| {
        let argument =
            argument(alternatives).map_err(|reason| format!("parameter `{parameter}`: {reason}"))?;
        Ok((parameter.clone(), argument))
    };
    Ok(ExpectedCall {
        name: name.clone(),
        arguments: parameters.iter().map(read).collect::<Result<_, String>>()?,
    })
}

/// The argument that alternatives stand for; an empty text among them says that it may be left out.
fn argument(alternatives: &Value) -> Result<Argument, String> {
    let single = std::slice::from_ref(alternatives);
    let alternatives = alternatives.as_array().map_or(single, Vec::as_slice);
    let mut values = Vec::new();
    for alternative in alternatives {
        values.extend(written_out(alternative)?);
        if values.len() > MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives"));
        }
    }
    if values.is_empty() {
        return Err("no value of it is accepted".to_owned());
    }
    if values.contains(&empty()) {
        return Ok(Argument::Optional(values));
    }
    match <[Value; 1]>::try_from(values) {
        Ok([value]) => Ok(Argument::Is(value)),
        Err(values) => Ok(Argument::OneOf(values)),
    }
}

fn empty() -> Value {
    Value::String(String::new())
}

/// The plain values of one alternative: an object holds alternatives for each of its keys, and so does each
/// object in a list.
fn written_out(alternative: &Value) -> Result<Vec<Value>, String> {
    match alternative {
        Value::Object(fields) => {
            let choices = fields.iter().map(|(key, options)| {
                let single = std::slice::from_ref(options);
                let options = options.as_array().map_or(single, Vec::as_slice);
                let field = |value: &Value| (*value != empty()).then(|| (key.clone(), value.clone()));
                options.iter().map(field).collect()
            });
            let objects = products(choices.collect())?;
            Ok(objects
                .into_iter()
                .map(|fields| fields.into_iter().flatten().collect::<Map<_, _>>().into())
                .collect())
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let choices = items.iter().map(written_out).collect::<Result<Vec<_>, _>>()?;
            Ok(products(choices)?.into_iter().map(Value::Array).collect())
        }
        value => Ok(vec![value.clone()]),
    }
}

/// Every way to take one of each of `choices`, in order.
fn products<T: Clone>(choices: Vec<Vec<T>>) -> Result<Vec<Vec<T>>, String> {
    let mut results = vec![Vec::new()];
    for options in choices {
        let longer = results.iter().flat_map(|start: &Vec<T>| {
            options.iter().map(move |option| start.iter().cloned().chain([option.clone()]).collect())
        });
        let longer: Vec<Vec<T>> = longer.take(MAX_ALTERNATIVES + 1).collect();
        if longer.len() > MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives"));
        }
        results = longer;
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn alternatives_become_arguments() {
        let cases: &[(Value, Argument)] = &[
            (json!([5]), Argument::Is(json!(5))),
            (json!(["a", "b"]), Argument::OneOf(vec![json!("a"), json!("b")])),
            (json!(["units", ""]), Argument::Optional(vec![json!("units"), json!("")])),
            (json!([""]), Argument::Optional(vec![json!("")])),
            (json!([[1, 2]]), Argument::Is(json!([1, 2]))),
            (json!([["", "x"]]), Argument::Is(json!(["", "x"]))),
            // Two values of `a`, with and without `b`.
            (
                json!([{"a": [1, 2], "b": ["x", ""]}]),
                Argument::OneOf(vec![
                    json!({"a": 1, "b": "x"}),
                    json!({"a": 1}),
                    json!({"a": 2, "b": "x"}),
                    json!({"a": 2}),
                ]),
            ),
            (
                json!([[{"a": [1]}, {"a": [2, 3]}]]),
                Argument::OneOf(vec![json!([{"a": 1}, {"a": 2}]), json!([{"a": 1}, {"a": 3}])]),
            ),
            // A key whose options are no list has that one value.
            (json!([{"a": "x"}]), Argument::Is(json!({"a": "x"}))),
        ];
        for (alternatives, expected) in cases {
            assert_eq!(argument(alternatives).as_ref(), Ok(expected), "{alternatives}");
        }
    }

    #[test]
    fn too_many_alternatives_and_none_are_refused() {
        let options: Vec<u32> = (0..17).collect();
        // 17 * 17 = 289 are too many, 16 * 16 = 256 are not.
        assert!(argument(&json!([{"a": options, "b": options}])).is_err());
        assert!(argument(&json!([{"a": options[1..], "b": options[1..]}])).is_ok());
        for none in [json!([]), json!([{"a": []}])] {
            assert_eq!(argument(&none), Err("no value of it is accepted".to_owned()));
        }
    }

    #[test]
    fn calls_are_read() {
        let calls = expected_calls(&json!([{"math.area": {"base": [10], "unit": ["", "cm"]}}])).unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].name, "math.area");
        assert_eq!(calls[0].arguments["base"], Argument::Is(json!(10)));
        for wrong in [json!({}), json!(["f"]), json!([{}]), json!([{"f": {}, "g": {}}]), json!([{"f": []}])] {
            assert!(expected_calls(&wrong).is_err(), "{wrong}");
        }
    }
}
