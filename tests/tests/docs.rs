//! Pages made from declarations, and the words and commands of the pages written by hand.

use envace_tests::{repository, tables_page};

#[test]
fn the_page_of_tables_is_fresh() {
    let path = repository::root().join(tables_page::NAME);
    let fresh = tables_page::render();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs_err::write(&path, &fresh).unwrap();
    }
    let stored = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == fresh,
        "`{}` is stale; write it anew: UPDATE_DOCS=1 cargo test -p envace-tests",
        tables_page::NAME
    );
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
