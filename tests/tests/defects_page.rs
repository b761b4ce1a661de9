//! `docs/reference-defects.md` says what the presets do: every row is there, and every setting it names is real.

use std::collections::BTreeMap;

use envace_jobs::config::{Config, Preset};
use envace_tests::repository;

const PAGE: &str = "docs/reference-defects.md";

/// Ids on the page: D1 to D36 are defects, Q1 to Q14 open questions.
const SERIES: &[(char, usize)] = &[('D', 36), ('Q', 14)];

#[test]
fn every_id_has_one_row() {
    let page = page();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows(&page) {
        *counts.entry(row[0]).or_default() += 1;
    }
    for (letter, last) in SERIES {
        for number in 1..=*last {
            assert_eq!(
                counts.remove(format!("{letter}{number}").as_str()),
                Some(1),
                "rows of {letter}{number}"
            );
        }
    }
    assert!(counts.is_empty(), "ids that do not exist: {counts:?}");
}

#[test]
fn every_row_says_what_both_presets_do() {
    for row in rows(&page()) {
        assert_eq!(row.len(), 5, "cells of `{}`", row[0]);
        assert!(row[1..4].iter().all(|cell| !cell.is_empty()), "an empty cell: `{}`", row[0]);
    }
}

#[test]
fn every_key_exists() {
    let page = page();
    let keys: Vec<_> =
        rows(&page).into_iter().flat_map(|row| code(row[4]).map(move |key| (row[0], key))).collect();
    assert!(keys.len() > 50, "the page names too few keys: {}", keys.len());
    for (id, key) in keys {
        assert!(exists(key), "{id} names a key that does not exist: {key}");
    }
}

#[test]
fn keys_that_do_not_exist_are_noticed() {
    assert!(
        exists("advantage.singleton") && exists("roles.rehearsal.checkpoint") && exists("rollout.thinking")
    );
    assert!(!exists("advantage.singletons") && !exists("judge.url") && !exists("update.kl.coefficients"));
}

#[test]
fn every_value_is_the_presets() {
    let page = page();
    let mut n_settings = 0;
    for row in rows(&page) {
        n_settings +=
            check_values(row[0], row[2], Preset::Default) + check_values(row[0], row[3], Preset::Paper);
    }
    for row in table_rows(&page).filter(|row| row.len() == 3 && row[0] != "what") {
        let [what, paper, default] = row[..] else { unreachable!("three cells") };
        n_settings += check_values(what, paper, Preset::Paper);
        let default = if default == "the same" { paper } else { default };
        n_settings += check_values(what, default, Preset::Default);
    }
    assert!(n_settings > 100, "the page states too few values: {n_settings}");
}

#[test]
fn links_to_source_files_lead_to_what_they_promise() {
    let spec = repository::root().join("jobs/src/score/spec.rs");
    assert!(fs_err::read_to_string(spec).unwrap().contains("pub enum GraderKind"));
}

/// Compares each `key = value` of `cell` with `preset`; how many there are.
fn check_values(id: &str, cell: &str, preset: Preset) -> usize {
    let values: toml::Table = toml::from_str(&preset.config().to_toml().unwrap()).unwrap();
    let mut n_settings = 0;
    for setting in code(cell).filter(|text| text.contains(" = ")) {
        let (key, _) = setting.split_once(" = ").unwrap();
        let stated: toml::Table =
            toml::from_str(setting).unwrap_or_else(|error| panic!("{id}: {setting}: {error}"));
        let stated = lookup(&stated, key).unwrap();
        let held = lookup(&values, key).unwrap_or_else(|| panic!("{id}: the preset does not state `{key}`"));
        assert!(is_equal(stated, held), "{id}: the page says `{setting}`, the preset holds {held}");
        n_settings += 1;
    }
    n_settings
}

/// Decimals are texts in TOML, where zeros at their end do not matter; some floats have 32 bits in the configuration.
fn is_equal(stated: &toml::Value, held: &toml::Value) -> bool {
    match (stated, held) {
        (toml::Value::String(a), toml::Value::String(b)) => {
            a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
        }
        (toml::Value::Float(a), toml::Value::Float(b)) => *a as f32 == *b as f32,
        _ => stated == held,
    }
}

fn lookup<'a>(table: &'a toml::Table, key: &str) -> Option<&'a toml::Value> {
    let mut parts = key.split('.');
    let first = table.get(parts.next()?);
    parts.fold(first, |value, part| value?.get(part))
}

/// Whether the configuration knows `key`, also where no preset gives it a value.
fn exists(key: &str) -> bool {
    match Config::parse(&format!("{key} = \"x\""), "page") {
        Ok(_) => true,
        // Of the wrong type, or out of range: then it is known.
        Err(error) => !error.to_string().contains("unknown field"),
    }
}

fn page() -> String {
    fs_err::read_to_string(repository::root().join(PAGE)).unwrap()
}

/// The cells of the rows whose first one is an id.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let is_id = |text: &str| {
        let mut letters = text.chars();
        let series = letters.next();
        SERIES.iter().any(|(letter, _)| series == Some(*letter))
            && !letters.as_str().is_empty()
            && letters.all(|letter| letter.is_ascii_digit())
    };
    table_rows(page).filter(|row| is_id(row[0])).collect()
}

fn table_rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    lines.filter(|line| !line.starts_with("---")).map(|line| line.split('|').map(str::trim).collect())
}

/// The texts between backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}
