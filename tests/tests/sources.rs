//! What holds for every file of the code base.

use envace_tests::repository::{self, TextFile};

/// Lines a source file may have, at most.
const MAX_LINES: usize = 600;

#[test]
fn source_files_are_short() {
    let long = files().into_iter().filter(|file| file.has_ending(&["rs", "sql", "py", "sh"]));
    let long =
        long.map(|file| (file.text.lines().count(), file.name)).filter(|(n_lines, _)| *n_lines > MAX_LINES);
    assert_none(
        "more than 600 lines: split the file by concept",
        long.map(|(n, name)| format!("{name}: {n}")),
    );
}

#[test]
fn nothing_is_left_undone() {
    // Written so that this file does not hold what it looks for.
    let marks = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let wrong =
        rust_files().flat_map(|file| file.lines_where(|line| marks.iter().any(|mark| line.contains(mark))));
    assert_none("left undone", wrong);
}

#[test]
fn no_test_is_switched_off() {
    let mark = format!("#[{}", "ignore");
    let wrong = rust_files().flat_map(|file| file.lines_where(|line| line.trim_start().starts_with(&mark)));
    assert_none("a test that does not run: delete it, or make it fast", wrong);
}

#[test]
fn lints_are_expected_with_a_reason() {
    let mark = format!("{}(", "allow");
    let wrong = rust_files().flat_map(|file| {
        file.lines_where(|line| {
            let line = line.trim_start();
            line.starts_with(&format!("#[{mark}")) || line.starts_with(&format!("#![{mark}"))
        })
    });
    assert_none(
        "use `#[expect(.., reason = \"..\")]`: it says why, and speaks up once it is not needed",
        wrong,
    );
}

#[test]
fn libraries_do_not_print() {
    let libraries =
        ["schemas", "sql", "grpo", "model", "model/kernels", "pipeline"].map(|name| format!("{name}/src/"));
    let wrong = rust_files()
        .filter(|file| libraries.iter().any(|start| file.name.starts_with(start)))
        .flat_map(|file| {
            file.lines_where(|line| {
                let line = line.trim_start();
                !line.starts_with("//")
                    && ["println!(", "eprintln!(", "print!("].iter().any(|mark| line.contains(mark))
            })
        });
    assert_none("libraries return what they have to say, or log it", wrong);
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let folders = ["work", "root", "home", "mnt", "Users"].map(|name| format!("/{name}"));
    let wrong = files()
        .into_iter()
        .flat_map(|file| file.lines_where(|line| folders.iter().any(|folder| holds_path(line, folder))));
    assert_none("a path of one machine", wrong);
}

#[test]
fn no_file_points_beside_the_repository() {
    let beside = format!("{}/shared", "..");
    let wrong = files().into_iter().flat_map(|file| file.lines_where(|line| line.contains(&beside)));
    assert_none("a clone has nothing beside it", wrong);
}

#[test]
fn packages_come_from_where_everyone_gets_them() {
    let switches = ["index-url", "find-links", "trusted-host", "replace-with"];
    let wrong = files()
        .into_iter()
        .filter(|file| !file.has_ending(&["rs", "md"]))
        .flat_map(|file| file.lines_where(|line| switches.iter().any(|switch| line.contains(switch))));
    assert_none("a package source of one machine", wrong);
}

#[test]
fn holds_path_sees_whole_names_at_the_start_of_a_path() {
    let folder = format!("/{}", "home");
    for (line, expected) in
        [("cd %/me", true), ("\"%\"", true), ("(%)", true), ("a%/b", false), ("%less", false)]
    {
        assert_eq!(holds_path(&line.replace('%', &folder), &folder), expected, "{line}");
    }
    assert!(holds_path(&format!("x{folder} {folder}"), &folder), "the second place counts too");
}

/// Whether `line` holds a path that begins with `folder`.
fn holds_path(line: &str, folder: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.');
    line.match_indices(folder).any(|(begin, _)| {
        let before = line[..begin].chars().next_back();
        let after = line[begin + folder.len()..].chars().next();
        !before.is_some_and(|letter| is_name(letter) || matches!(letter, '/' | '}'))
            && !after.is_some_and(is_name)
    })
}

fn files() -> Vec<TextFile> {
    let files = repository::text_files().expect("the code base can be read");
    assert!(files.len() > 50, "the code base was not found: {} files", files.len());
    files
}

fn rust_files() -> impl Iterator<Item = TextFile> {
    files().into_iter().filter(|file| file.has_ending(&["rs"]))
}

fn assert_none(rule: &str, wrong: impl Iterator<Item = String>) {
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}
