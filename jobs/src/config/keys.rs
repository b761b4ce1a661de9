//! Every key of a configuration and what it means, from the declarations.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{Config, ConfigError, Preset};

/// A key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, dotted.
    pub name: String,
    /// What it means, from the documentation of its declaration.
    pub meaning: String,
    /// What it may be, where that is one of some words.
    pub choices: Vec<Choice>,
    /// Its default as TOML; `None` if it has no value unless it is given one.
    pub default: Option<String>,
    /// Its value in [`Preset::Paper`], where that is another.
    pub paper: Option<String>,
    /// What the innermost section means that it stands in and that is absent unless it is given.
    pub optional_section: Option<String>,
}

/// A word that a key may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The word.
    pub word: String,
    /// What it means.
    pub meaning: String,
}

/// All keys, in the order of their declarations. Those of sections that are absent by default have the defaults that they
/// have once the section is there.
///
/// # Errors
/// [`ConfigError::Write`] if a default has no TOML form.
pub fn keys() -> Result<Vec<Key>, ConfigError> {
    let schema = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<Config>();
    let whole = |preset: Preset| toml::Table::try_from(with_all_sections(preset));
    let values = [whole(Preset::Default)?, whole(Preset::Paper)?];
    let mut keys = Vec::new();
    if let Some(fields) = schema.as_object().and_then(fields) {
        collect(("", None), fields, [Some(&values[0]), Some(&values[1])], &mut keys);
    }
    Ok(keys)
}

fn with_all_sections(preset: Preset) -> Config {
    let mut config = preset.config();
    config.score.judge.get_or_insert_with(|| preset.judge());
    config.lora.get_or_insert_default();
    config.update.correction.get_or_insert_default();
    config
}

fn fields(schema: &Map<String, Value>) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// What an optional field's schema says of the value that is there.
fn present(schema: &Map<String, Value>) -> &Map<String, Value> {
    let options = schema.get("anyOf").and_then(Value::as_array);
    let of_value = options.and_then(|options| {
        options.iter().filter_map(Value::as_object).find(|option| option.get("type") != Some(&"null".into()))
    });
    of_value.unwrap_or(schema)
}

fn collect(
    (above, optional_section): (&str, Option<&str>),
    fields_of: &Map<String, Value>,
    values: [Option<&toml::Table>; 2],
    keys: &mut Vec<Key>,
) {
    for (field, schema) in fields_of {
        let Some(schema) = schema.as_object() else { continue };
        let name = if above.is_empty() { field.clone() } else { format!("{above}.{field}") };
        let values = values.map(|table| table.and_then(|table| table.get(field)));
        if let Some(inner) = fields(present(schema)) {
            let own = may_be_left_out(schema).then(|| meaning(schema));
            let section = own.as_deref().or(optional_section);
            let values = values.map(|value| value.and_then(toml::Value::as_table));
            collect((&name, section), inner, values, keys);
            continue;
        }
        let [default, paper] = values.map(|value| value.map(shortest));
        let paper = paper.filter(|paper| Some(paper) != default.as_ref());
        let optional_section = optional_section.map(str::to_owned);
        let (meaning, choices) = (meaning(schema), choices(schema));
        keys.push(Key { name, meaning, choices, default, paper, optional_section });
    }
}

/// Whether a section is an optional field.
fn may_be_left_out(schema: &Map<String, Value>) -> bool {
    let types = schema.get("type").and_then(Value::as_array);
    schema.contains_key("anyOf") || types.is_some_and(|types| types.contains(&"null".into()))
}

/// A value as it would be written: a number of 32 bits has more digits in 64 than were given.
fn shortest(value: &toml::Value) -> String {
    match value {
        toml::Value::Float(number) if f64::from(*number as f32) == *number => {
            toml::Value::Float((*number as f32).to_string().parse().unwrap_or(*number)).to_string()
        }
        other => other.to_string(),
    }
}

/// Without the sentence that says the default, which is a column of its own: in a section that is used twice it may be
/// another.
fn meaning(schema: &Map<String, Value>) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.split_once(" Default: ") {
        None => text,
        // What follows a comma says why, and stays.
        Some((before, after)) => match after.split_once(". ") {
            Some((_, rest)) => format!("{before} {rest}"),
            None => before.to_owned(),
        },
    }
}

/// The words of an enumeration, or of a list of one.
fn choices(schema: &Map<String, Value>) -> Vec<Choice> {
    let of_items = schema.get("items").and_then(Value::as_object);
    let schema = present(of_items.unwrap_or(schema));
    let of_some = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let described = of_some.filter_map(Value::as_object).filter_map(|one| {
        Some(Choice { word: one.get("const")?.as_str()?.to_owned(), meaning: meaning(one) })
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_configuration_is_there_with_what_it_means() {
        let keys = keys().unwrap();
        // Whatever is in the effective configuration is a key, and the other way round.
        fn leaves(above: &str, table: &toml::Table, names: &mut Vec<String>) {
            for (field, value) in table {
                let name = if above.is_empty() { field.clone() } else { format!("{above}.{field}") };
                match value {
                    toml::Value::Table(inner) => leaves(&name, inner, names),
                    _ => names.push(name),
                }
            }
        }
        let mut names = Vec::new();
        let config = with_all_sections(Preset::Default);
        leaves("", &toml::Table::try_from(config).unwrap(), &mut names);
        let with_value: Vec<&str> =
            keys.iter().filter(|key| key.default.is_some()).map(|key| key.name.as_str()).collect();
        assert_eq!(with_value, names);
        let without: Vec<&str> =
            keys.iter().filter(|key| key.default.is_none()).map(|key| key.name.as_str()).collect();
        assert_eq!(without, ["roles.rehearsal.checkpoint", "rollout.thinking"]);
        for key in &keys {
            assert!(!key.meaning.is_empty(), "`{}` has no meaning", key.name);
        }
        let key = |name: &str| keys.iter().find(|key| key.name == name).unwrap();
        let preset = key("preset");
        assert_eq!(
            preset.choices.iter().map(|one| one.word.as_str()).collect::<Vec<_>>(),
            ["default", "paper"]
        );
        assert_eq!(preset.default.as_deref(), Some("\"default\""));
        assert_eq!(preset.paper.as_deref(), Some("\"paper\""));
        assert_eq!(key("update.kl.roles").choices[0].word, "actor");
        assert_eq!(key("evaluate.every").paper.as_deref(), Some("10"));
        assert_eq!(key("evaluate.actor.temperature").default.as_deref(), Some("0.6"));
        assert!(!key("evaluate.actor.temperature").meaning.contains("Default"));
        assert!(key("lora.rank").optional_section.as_ref().is_some_and(|text| text.contains("all weights")));
        assert_eq!(key("update.kl.roles").optional_section, None);
    }
}
