//! One call against one answer.

use serde_json::{Map, Value};

use super::values::{Kind, as_list, equal, is_among, is_blank, kind, normalized, normalized_value};
use super::{BfclAnswer, Language, MadeCall, Mismatch, java, javascript};

/// Holds a call against what is expected of it, up to the first fault.
pub(super) fn check_call(
    answer: &BfclAnswer,
    function: &Value,
    call: &MadeCall,
    expected: &Map<String, Value>,
) -> Result<(), Mismatch> {
    let Some(accepted_of) = expected.values().next().and_then(Value::as_object) else {
        return Err(Mismatch::undefined("the answer names no parameters"));
    };
    let mut name = function["name"].as_str().unwrap_or_default().to_owned();
    if answer.dots_are_underscores {
        name = name.replace('.', "_");
    }
    if call.name != name {
        let reason = format!("`{}` was called, not `{name}`", call.name);
        return Err(Mismatch::new("simple_function_checker:wrong_func_name", reason));
    }
    let parameters = &function["parameters"];
    let Some(properties) = parameters["properties"].as_object() else {
        return Err(Mismatch::undefined("the function declares no properties"));
    };
    for required in parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !call.arguments.contains_key(required) {
            let reason = format!("required parameter `{required}` is missing");
            return Err(Mismatch::new("simple_function_checker:missing_required", reason));
        }
    }
    for (parameter, value) in &call.arguments {
        let known = properties.get(parameter).zip(accepted_of.get(parameter).and_then(Value::as_array));
        let Some((declared, accepted)) = known else {
            let reason = format!("parameter `{parameter}` is not expected");
            return Err(Mismatch::new("simple_function_checker:unexpected_param", reason));
        };
        check_argument(answer.language, declared, value, accepted).map_err(|mismatch| Mismatch {
            reason: format!("parameter `{parameter}`: {}", mismatch.reason),
            ..mismatch
        })?;
    }
    for (parameter, accepted) in accepted_of {
        let is_optional = accepted.as_array().is_some_and(|accepted| accepted.iter().any(is_blank));
        if !is_optional && !call.arguments.contains_key(parameter) {
            let reason = format!("parameter `{parameter}` is missing");
            return Err(Mismatch::new("simple_function_checker:missing_optional", reason));
        }
    }
    Ok(())
}

fn check_argument(
    language: Language,
    declared: &Value,
    given: &Value,
    accepted: &[Value],
) -> Result<(), Mismatch> {
    let type_name = declared["type"].as_str().unwrap_or_default();
    let item_type = declared["items"]["type"].as_str();
    let wanted = wanted_kind(language, type_name)?;
    let item_kind = || match item_type {
        Some(item_type) => wanted_kind(language, item_type).map(Some),
        None => Err(Mismatch::undefined("the type of the items is not declared")),
    };
    let (value, inner) = match language {
        Language::Python => {
            let inner = if matches!(type_name, "array" | "tuple") { item_kind()? } else { None };
            let value = match given.as_f64() {
                Some(number) if wanted == Kind::Float && kind(given) == Kind::Int => number.into(),
                _ => given.clone(),
            };
            (value, inner)
        }
        Language::Java | Language::JavaScript => {
            let class = if language == Language::Java { "type_error:java" } else { "type_error:js" };
            let Some(text) = given.as_str() else {
                return Err(Mismatch::new(class, format!("{given} is not written as source text")));
            };
            let inner =
                if matches!(type_name, "Array" | "ArrayList" | "array") { item_kind()? } else { None };
            let item_type = inner.and(item_type);
            let value = match language {
                Language::Java => java::value(text, type_name, item_type),
                _ => javascript::value(text, type_name, item_type),
            };
            (value, inner)
        }
    };
    let is_variable = check_type(&value, accepted, wanted, inner)?;
    if !is_variable {
        match (wanted, &value) {
            (Kind::Dict, Value::Object(value)) => return check_dict(value, accepted),
            (Kind::List, Value::Array(items)) if inner == Some(Kind::Dict) => {
                return check_dicts(items, accepted);
            }
            (Kind::Str, Value::String(text)) => return check_text(text, accepted),
            (Kind::List, Value::Array(items)) => return check_list(items, accepted),
            _ => {}
        }
    }
    if is_among(&value, accepted) {
        return Ok(());
    }
    Err(Mismatch::new("value_error:others", format!("{value} is none of the accepted values")))
}

/// The kind of value that a type name asks for.
fn wanted_kind(language: Language, type_name: &str) -> Result<Kind, Mismatch> {
    let kind = match (language, type_name) {
        (Language::Python, "string") | (_, "any") => Kind::Str,
        (Language::Python | Language::Java, "integer" | "float" | "boolean")
        | (Language::JavaScript, "integer" | "float") => match type_name {
            "integer" => Kind::Int,
            "float" => Kind::Float,
            _ => Kind::Bool,
        },
        (Language::Python, "array" | "tuple") | (Language::JavaScript, "array") => Kind::List,
        (Language::Python | Language::JavaScript, "dict") => Kind::Dict,
        (Language::Java, "byte" | "short" | "long") | (Language::JavaScript, "Bigint") => Kind::Int,
        (Language::Java, "double") => Kind::Float,
        (Language::Java, "char" | "String") | (Language::JavaScript, "String") => Kind::Str,
        (Language::Java, "Array" | "ArrayList" | "Queue" | "Stack") => Kind::List,
        (Language::Java, "HashMap" | "Hashtable") => Kind::Dict,
        (Language::JavaScript, "Boolean") => Kind::Bool,
        _ => return Err(Mismatch::undefined(format!("there is no type `{type_name}`"))),
    };
    Ok(kind)
}

/// Whether the value is of the kind that is wanted, or of that of the first accepted value, as a name of a variable is
/// where a number is wanted. Returns whether accepted values are of another kind than wanted: then they count verbatim.
fn check_type(
    value: &Value,
    accepted: &[Value],
    wanted: Kind,
    inner: Option<Kind>,
) -> Result<bool, Mismatch> {
    let leading = accepted.iter().find(|one| !is_blank(one)).map(kind);
    let is_variable = leading.is_some_and(|leading| leading != wanted);
    let fault = |class| Err(Mismatch::new(class, format!("{value} is of another type than expected")));
    if kind(value) != wanted {
        return if leading == Some(kind(value)) { Ok(true) } else { fault("type_error:simple") };
    }
    let (Some(inner), Value::Array(items)) = (inner, value) else { return Ok(is_variable) };
    // One alternative whose items have the kinds of these is enough; what is no list fits anything.
    let fits = |alternative: &Value| match alternative {
        Value::Array(alternative) => {
            items.iter().all(|item| check_type(item, alternative, inner, None).is_ok())
        }
        _ => true,
    };
    if accepted.iter().any(fits) {
        return Ok(is_variable);
    }
    fault(if leading == Some(kind(value)) { "type_error:nested" } else { "type_error:simple" })
}

fn check_text(text: &str, accepted: &[Value]) -> Result<(), Mismatch> {
    let text_normalized = normalized(text);
    if accepted.iter().filter_map(Value::as_str).any(|one| normalized(one) == text_normalized) {
        return Ok(());
    }
    Err(Mismatch::new("value_error:string", format!("{text:?} is none of the accepted texts")))
}

fn check_list(items: &[Value], accepted: &[Value]) -> Result<(), Mismatch> {
    let normalized_list = |items: &[Value]| Value::Array(items.iter().map(normalized_value).collect());
    let items = normalized_list(items);
    // All are read before any is compared.
    let Some(alternatives) = accepted.iter().map(as_list).collect::<Option<Vec<_>>>() else {
        return Err(Mismatch::undefined("an accepted value is no list"));
    };
    if alternatives.iter().any(|one| equal(&items, &normalized_list(one))) {
        return Ok(());
    }
    Err(Mismatch::new("value_error:list/tuple", format!("{items} is none of the accepted lists")))
}

fn check_dict(value: &Map<String, Value>, accepted: &[Value]) -> Result<(), Mismatch> {
    let mut fault = Mismatch::new("dict_checker:unclear", "no object is accepted");
    for alternative in accepted.iter().filter(|one| !is_blank(one)) {
        let Value::Object(alternative) = alternative else {
            return Err(Mismatch::undefined("an accepted value is no object"));
        };
        match check_dict_alternative(value, alternative) {
            Ok(()) => return Ok(()),
            Err(mismatch) => fault = mismatch,
        }
    }
    Err(fault)
}

fn check_dict_alternative(
    value: &Map<String, Value>,
    alternative: &Map<String, Value>,
) -> Result<(), Mismatch> {
    let key_fault = |reason: String| Err(Mismatch::new("value_error:dict_key", reason));
    let mut first = Ok(());
    for (key, value) in value {
        let Some(options) = alternative.get(key) else {
            first = key_fault(format!("key `{key}` is not expected"));
            break;
        };
        let options: Vec<Value> = as_list(options).unwrap_or_default().iter().map(normalized_value).collect();
        if !is_among(&normalized_value(value), &options) {
            let reason = format!("{value} is not accepted for key `{key}`");
            first = Err(Mismatch::new("value_error:dict_value", reason));
            break;
        }
    }
    for (key, options) in alternative {
        // In one answer the options are a bare text: then the key may be missing.
        let is_optional =
            options.is_string() || as_list(options).is_some_and(|options| options.iter().any(is_blank));
        if !is_optional && !value.contains_key(key) {
            return key_fault(format!("key `{key}` is missing"));
        }
    }
    first
}

fn check_dicts(items: &[Value], accepted: &[Value]) -> Result<(), Mismatch> {
    let mut fault = Mismatch::new("list_dict_checker:unclear", "no list is accepted");
    for alternative in accepted {
        let Some(alternative) = as_list(alternative) else {
            return Err(Mismatch::undefined("an accepted value is no list"));
        };
        if items.len() != alternative.len() {
            let reason = format!("{} objects, not {}", items.len(), alternative.len());
            fault = Mismatch::new("value_error:list_dict_count", reason);
            continue;
        }
        let check = |(item, accepted): (&Value, &Value)| match item {
            Value::Object(item) => check_dict(item, std::slice::from_ref(accepted)),
            other => Err(Mismatch::undefined(format!("{other} is no object"))),
        };
        match items.iter().zip(&alternative).try_for_each(check) {
            Ok(()) => return Ok(()),
            Err(mismatch) => fault = mismatch,
        }
    }
    Err(fault)
}
