//! `docs/configuration.md`, made from the declarations in `envace-jobs`.

use std::fmt::Write as _;

use envace_jobs::config::keys::{Choice, Key};

/// Name of the page below the root.
pub const NAME: &str = "docs/configuration.md";

const HEAD: &str = "\
# The configuration

<!-- Made from the declarations in `jobs/src/config/`; `UPDATE_DOCS=1 cargo test -p envace-tests` writes it anew. -->

A run is configured by one TOML file, `--config FILE`, which is stored with the run. What the file leaves out has the default,
or with `preset = \"paper\"` the value of the reference run. `envace-jobs config --config FILE` prints what comes of a file, and
an unknown key is an error.

A value is part of the key of each stage that it can change, so that another value is another run, or a new attempt at what
depends on it. `[execution]` is in no key, apart from the device: it changes how fast and in how much memory, but no result.
";

/// The whole page, as Markdown.
pub fn render(keys: &[Key]) -> String {
    let mut page = HEAD.to_owned();
    // A section's own keys stand together, also where a section within it is declared among them.
    let mut sections: Vec<(&str, Option<&str>, Vec<String>)> = Vec::new();
    for key in keys {
        let (section, name) = key.name.rsplit_once('.').unwrap_or(("", &key.name));
        match sections.iter_mut().find(|(known, ..)| *known == section) {
            Some((.., rows)) => rows.push(row(name, key)),
            None => sections.push((section, key.optional_section.as_deref(), vec![row(name, key)])),
        }
    }
    for (section, optional, rows) in sections {
        let title = if section.is_empty() { "At the top".to_owned() } else { format!("`[{section}]`") };
        let _ = write!(page, "\n## {title}\n\n");
        if let Some(meaning) = optional {
            let _ = write!(page, "{meaning} The defaults are those of a section that is there.\n\n");
        }
        let _ = write!(page, "| key | default | in `paper` | meaning |\n|---|---|---|---|\n");
        page.extend(rows);
    }
    page
}

fn row(name: &str, key: &Key) -> String {
    let choices: Vec<String> = key.choices.iter().map(choice).collect();
    let meaning = [&[key.meaning.clone()][..], &choices].concat().join("<br>").replace('|', "\\|");
    let value = |value: &Option<String>| value.as_ref().map(|value| format!("`{value}`"));
    let default = value(&key.default).unwrap_or_else(|| "left out".to_owned());
    let paper = value(&key.paper).unwrap_or_default();
    format!("| `{name}` | {default} | {paper} | {meaning} |\n")
}

fn choice(choice: &Choice) -> String {
    format!("`{}`: {}", choice.word, choice.meaning)
}
