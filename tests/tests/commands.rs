//! Commands that the pages show: each exists, with the options it is shown with.

use clap::{Command, CommandFactory};
use envace_jobs::cli::Cli;
use envace_tests::repository;

const BINARY: &str = "envace-jobs";

#[test]
fn every_command_on_a_page_exists() {
    let cli = Cli::command();
    let mut n_commands = 0;
    let mut wrong = Vec::new();
    for file in repository::text_files().unwrap().iter().filter(|file| file.has_ending(&["md"])) {
        for words in commands(&file.text) {
            n_commands += 1;
            wrong.extend(problem(&cli, &words).map(|problem| format!("{}: {problem}", file.name)));
        }
    }
    assert!(wrong.is_empty(), "commands that do not work:\n{}", wrong.join("\n"));
    assert!(n_commands >= 10, "too few commands were found: {n_commands}");
}

#[test]
fn commands_are_found_in_code_only() {
    let page = "the envace-jobs way: `envace-jobs sql \"select 1 --x\"` and `.ci/run`\n\
                ```sh\ncargo run --bin envace-jobs -- run --run R   # envace-jobs comment\n\
                ENVACE_STORE=s envace-jobs tasks import \\\n  --set mine\nenvace-jobs | cat\n```\n";
    let expected: [&[&str]; 3] =
        [&["sql", "select 1 --x"], &["run", "--run", "R"], &["tasks", "import", "--set", "mine"]];
    assert_eq!(
        commands(page),
        expected.map(|words| words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
    );
}

#[test]
fn what_does_not_exist_is_noticed() {
    let cli = Cli::command();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(problem(&cli, &words("config --preset paper")), None);
    assert!(problem(&cli, &words("configure")).is_some());
    assert!(problem(&cli, &words("config --pre-set paper")).is_some());
}

/// What is wrong with the words after the program's name.
fn problem(cli: &Command, words: &[String]) -> Option<String> {
    let mut command = cli;
    let mut is_flag_seen = false;
    for word in words {
        if let Some(flag) = word.strip_prefix("--") {
            is_flag_seen = true;
            let flag = flag.split('=').next().unwrap_or(flag);
            let is_known =
                command.get_arguments().chain(cli.get_arguments()).any(|arg| arg.get_long() == Some(flag))
                    || ["help", "version"].contains(&flag);
            if !is_known {
                return Some(format!("`{}` has no option `--{flag}`", command.get_name()));
            }
        } else if command.has_subcommands() && !is_flag_seen {
            match command.find_subcommand(word) {
                Some(found) => command = found,
                None => return Some(format!("`{}` has no subcommand `{word}`", command.get_name())),
            }
        }
    }
    None
}

/// The words after the program's name, of each of its uses with at least one word.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (index, block) in page.split("```").enumerate() {
        if index % 2 == 1 {
            found.extend(block.replace("\\\n", " ").lines().filter_map(command));
        } else {
            found.extend(block.split('`').skip(1).step_by(2).filter_map(command));
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

/// The words after the program's name in one line of shell, comments left out.
fn command(line: &str) -> Option<Vec<String>> {
    let (before, after) = line.split_once(BINARY)?;
    let is_program = before.is_empty() || before.ends_with([' ', '/']);
    if !is_program || before.contains('#') || !(after.is_empty() || after.starts_with(' ')) {
        return None;
    }
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in after.chars() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, '#' | '|' | ';' | '>' | '&') => break,
            (None, ' ' | '\n') => words.push(String::new()),
            _ => words.last_mut()?.push(letter),
        }
    }
    words.retain(|word| !word.is_empty() && word != "--" && word != "…" && word != "...");
    Some(words)
}
