//! Pages made from declarations, and the words and commands of the pages written by hand.

use envace_jobs::config::keys::keys;
use envace_jobs::tasks::{self, Format, ImportOptions};
use envace_tests::{config_page, repository, tables_page};

#[test]
fn the_pages_made_from_declarations_are_fresh() {
    let of_config = config_page::render(&keys().unwrap());
    for (name, fresh) in [(tables_page::NAME, tables_page::render()), (config_page::NAME, of_config)] {
        let path = repository::root().join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs_err::write(&path, &fresh).unwrap();
        }
        let stored = fs_err::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == fresh,
            "`{name}` is stale; write it anew: UPDATE_DOCS=1 cargo test -p envace-tests"
        );
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for file in repository::text_files().unwrap().iter().filter(|file| file.has_ending(&["md"])) {
        let folder = file.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        for target in file.text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere && !repository::root().join(folder).join(target).exists() {
                broken.push(format!("{}: {target}", file.name));
            }
        }
    }
    assert!(broken.is_empty(), "links to nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_examples_on_the_page_of_tasks_are_tasks() {
    let page = fs_err::read_to_string(repository::root().join("docs/tasks.md")).unwrap();
    let examples: Vec<serde_json::Value> = page
        .split("```json\n")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.split("```").next().unwrap()).unwrap())
        .collect();
    assert_eq!(examples.len(), 2);
    let lines: Vec<String> = examples.iter().map(ToString::to_string).collect();
    let report =
        tasks::import(lines.join("\n").as_bytes(), Format::Jsonl, &ImportOptions::default()).unwrap();
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    assert_eq!(report.rows.len(), 2);
    // Every grader that there is has a row on the page.
    let spec = fs_err::read_to_string(repository::root().join("jobs/src/score/spec.rs")).unwrap();
    let names = spec.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next());
    let missing: Vec<&str> = names.filter(|name| !page.contains(&format!("| `{name}` |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
