//! Every query file says what it is, and is what it says.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::block_on;
use envace_schemas::Table;
use envace_sql::queries::{self, QuerySpec};
use envace_sql::{AdvantageParams, EvaluationParams, Param, QuerySession, RewardParams};

/// Fields of the comment at the head of a file, by name, lines joined.
fn header(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines().map_while(|line| line.strip_prefix("--")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if line.is_empty() {
            name = String::new();
        } else if ["grain", "reads", "params", "source"].contains(&word) {
            name = word.to_owned();
            fields.insert(name.clone(), rest.trim().to_owned());
        } else if let Some(table) = word.strip_suffix(':').filter(|_| fields.is_empty()) {
            fields.insert("table".to_owned(), table.to_owned());
        } else if let Some(field) = fields.get_mut(&name) {
            *field = format!("{field} {}", line.trim());
        }
    }
    fields
}

/// Words of `text` that begin with a dollar sign, without it.
fn placeholders(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|character: char| !(character.is_alphanumeric() || character == '_' || character == '$'));
    words.filter_map(|word| word.strip_prefix('$')).map(str::to_owned).collect()
}

fn body(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

fn params_of(spec: &QuerySpec) -> Vec<Param> {
    match spec.output {
        _ if spec.query == queries::WHITENED => AdvantageParams::default().to_whitening_params(),
        Table::Rewards => RewardParams::default().to_params(),
        Table::Advantages => AdvantageParams::default().to_params(),
        Table::Evaluations | Table::PassRates => {
            EvaluationParams { suite: "s".to_owned(), checkpoint: "c".to_owned() }.to_params()
        }
        other => unreachable!("no parameters known for {other}"),
    }
}

#[test]
fn headers_are_whole_and_true() {
    for spec in queries::ALL {
        let (name, text) = (spec.query.name, spec.query.text);
        let header = header(text);
        let field = |name: &str| header.get(name).unwrap_or_else(|| panic!("no `{name}`: {header:?}"));
        assert_eq!(field("table"), spec.output.name(), "{name}");
        assert!(name.ends_with(&format!("/{}.sql", spec.output)), "{name}");
        assert!(field("grain").contains(&format!("({})", spec.output.grain().join(", "))), "{name}");
        assert!(!field("source").is_empty(), "{name}");
        let reads = field("reads");
        for table in Table::ALL {
            let is_read = reads.split([' ', ',']).any(|word| word == table.name());
            assert_eq!(is_read, spec.inputs.contains(table), "{name}: {table} in `{reads}`");
        }
        let used = placeholders(&body(text));
        assert_eq!(used, placeholders(field("params")), "{name}: used, documented");
        let given: BTreeSet<_> = params_of(spec).iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(used, given, "{name}: used, given");
        assert!(!body(text).contains(';'), "{name}: one statement without a semicolon");
        assert!(text.lines().all(|line| line.chars().count() <= 115), "{name}: long line");
    }
}

/// A query of a stage planned on empty tables makes the table it is named after.
#[test]
fn queries_fit_their_tables() {
    for spec in queries::ALL {
        let inputs: Vec<_> = spec.inputs.iter().map(|table| (*table, Vec::new())).collect();
        let session = QuerySession::new(2);
        let params = params_of(spec);
        let made = session.run_query(spec.query.name, spec.query.text, &inputs, &params, spec.output);
        assert!(block_on(made).unwrap().is_empty(), "{}", spec.query.name);
        // And each input is needed.
        for index in 0..inputs.len() {
            let mut fewer = inputs.clone();
            fewer.remove(index);
            let made = session.run_query(spec.query.name, spec.query.text, &fewer, &params, spec.output);
            assert!(block_on(made).is_err(), "{}: {}", spec.query.name, inputs[index].0);
        }
    }
}

#[test]
fn no_query_file_is_forgotten() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("queries");
    let mut found = BTreeSet::new();
    for folder in std::fs::read_dir(&root).unwrap() {
        let folder = folder.unwrap().path();
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            found.insert(file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/"));
        }
    }
    let known: BTreeSet<_> = queries::ALL.iter().map(|spec| spec.query.name.to_owned()).collect();
    assert_eq!(found, known);
}
