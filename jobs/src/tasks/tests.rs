//! Files of each format, and what is taken and refused of them.

mod bfcl;
mod own;
mod reference;

use std::path::PathBuf;

use super::*;

/// A file of `tests/fixtures/tasks`.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tasks")).join(name)
}

fn import_fixture(name: &str, format: Format) -> ImportReport {
    import_path(&fixture(name), format, &ImportOptions::default()).unwrap()
}

/// The refusals of a report, one a line.
fn refusals(report: &ImportReport) -> Vec<String> {
    report.refused.iter().map(ToString::to_string).collect()
}

fn task(report: &ImportReport, id: &str) -> Task {
    let row = report.rows.iter().find(|row| row.task_id == id).unwrap();
    Task::parse(row.clone()).unwrap()
}
