//! Graders that are programs: one line of JSON in, one out, killed when they take too long.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use envace_schemas::tables::{MessageRow, TrajectoryRow, VerdictRow};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::{Fate, GradeOptions, GraderKind, GraderSpec, Outcome};
use crate::config::ProgramConfig;
use crate::error::JobError;
use crate::score::stage::messages_of;
use crate::task::Task;

/// Most that is read of what a program writes, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;
/// Most that is told of what it wrote to stderr, in characters.
const MAX_TOLD: usize = 300;

/// What a program is given.
#[derive(Serialize)]
struct Given<'a> {
    task_id: &'a str,
    sample: i32,
    user_turn: usize,
    item: &'a str,
    input: &'a Value,
    trajectory: &'a TrajectoryRow,
    messages: &'a [MessageRow],
}

/// What it writes.
#[derive(Deserialize)]
struct Written {
    is_passed: Option<bool>,
    #[serde(default)]
    reason: Option<String>,
}

/// Runs the programs that items name, as many at a time as the machine has threads, and puts what they say in place of
/// the verdicts on these items.
///
/// # Errors
/// [`JobError::Refused`] if an item names a program that the configuration does not have, or one that cannot be started.
pub(super) async fn run_programs(
    programs: &[ProgramConfig],
    options: GradeOptions,
    tasks: &BTreeMap<&str, &Arc<Task>>,
    trajectories: &[TrajectoryRow],
    messages: &[MessageRow],
    verdicts: &mut [VerdictRow],
) -> Result<(), JobError> {
    let by_key: BTreeMap<(&str, i32), &TrajectoryRow> =
        trajectories.iter().map(|row| ((row.task_id.as_str(), row.sample), row)).collect();
    let mut runs = Vec::new();
    for (index, verdict) in verdicts.iter().enumerate().filter(|(_, verdict)| verdict.grader == "program") {
        let task = tasks.get(verdict.task_id.as_str());
        let trajectory = by_key.get(&(verdict.task_id.as_str(), verdict.sample));
        let (Some(task), Some(trajectory)) = (task, trajectory) else { continue };
        let is_own = |spec: &&GraderSpec| {
            spec.item == verdict.item
                && i32::try_from(spec.user_turn).is_ok_and(|turn| turn == verdict.user_turn)
        };
        let Some(spec) = task.graders.iter().find(is_own) else { continue };
        let GraderKind::Program { program, input } = &spec.kind else { continue };
        if Fate::of(trajectory, spec.user_turn).outcome(trajectory, options).is_some() {
            continue;
        }
        let config = programs.iter().find(|config| config.name == *program).ok_or_else(|| {
            JobError::refused(
                format!(
                    "item `{}` of task `{}` names the program `{program}`, which is not there",
                    spec.item,
                    task.id()
                ),
                "declare it in the configuration: a `[[score.programs]]` with `name` and `command`",
            )
        })?;
        let given = Given {
            task_id: task.id(),
            sample: trajectory.sample,
            user_turn: spec.user_turn,
            item: &spec.item,
            input,
            trajectory,
            messages: messages_of(messages, trajectory),
        };
        let line = serde_json::to_vec(&given)
            .map_err(|source| JobError::Json { what: format!("input of program `{program}`"), source })?;
        runs.push(async move { Ok::<_, JobError>((index, run(config, line).await?)) });
    }
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runs = futures::stream::iter(runs).buffer_unordered(n_threads);
    let mut outcomes = Vec::new();
    while let Some(outcome) = runs.next().await {
        outcomes.push(outcome?);
    }
    drop(runs);
    for (index, Outcome { is_passed, reason }) in outcomes {
        if let Some(verdict) = verdicts.get_mut(index) {
            (verdict.is_passed, verdict.reason) = (is_passed, reason);
        }
    }
    Ok(())
}

/// Runs a program once. Whatever it does wrong leaves its item ungraded.
async fn run(config: &ProgramConfig, line: Vec<u8>) -> Result<Outcome, JobError> {
    let [program, arguments @ ..] = config.command.as_slice() else {
        return Ok(Outcome::ungraded("the program has no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    // A group of its own, so that what it starts can be killed with it.
    #[cfg(unix)]
    command.process_group(0);
    let child = command.spawn().map_err(|error| {
        JobError::refused(
            format!("the grader `{}` cannot be started: {program}: {error}", config.name),
            "`score.programs` needs the path of a program, or the name of one in PATH",
        )
    })?;
    let mut group = Group::of(&child);
    let limit = Duration::from_secs_f64(config.timeout_s);
    let outcome = match tokio::time::timeout(limit, talk(child, line)).await {
        Err(_) => {
            Outcome::ungraded(format!("program `{}` took longer than {} s", config.name, config.timeout_s))
        }
        Ok(Err(error)) => Outcome::ungraded(format!("program `{}`: {error}", config.name)),
        Ok(Ok((status, stdout, stderr))) => {
            // It is gone, and its number may soon be another's.
            group.release();
            read(&config.name, status, &stdout, &stderr)
        }
    };
    Ok(outcome)
}

/// Gives the line and takes what comes until the program has ended.
async fn talk(mut child: Child, mut line: Vec<u8>) -> std::io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    line.push(b'\n');
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let give = async {
        if let Some(mut stdin) = stdin {
            // A program that decides without reading all of it closes its end.
            let _ = stdin.write_all(&line).await;
        }
    };
    let ((), stdout, stderr) = tokio::join!(give, take(stdout), take(stderr));
    Ok((child.wait().await?, stdout?, stderr?))
}

async fn take(from: Option<impl tokio::io::AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut from) = from else { return Ok(bytes) };
    (&mut from).take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    // The rest is read, so that the program can end, and left.
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

/// The verdict in what a program wrote.
fn read(name: &str, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Outcome {
    if !status.success() {
        let told: String = String::from_utf8_lossy(stderr).trim().chars().take(MAX_TOLD).collect();
        return Outcome::ungraded(format!("program `{name}` ended with {status}: {told}"));
    }
    let text = String::from_utf8_lossy(stdout);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    match (lines.next(), lines.next()) {
        (Some(line), None) => match serde_json::from_str(line) {
            Ok(Written { is_passed: Some(true), .. }) => Outcome::passed(),
            Ok(Written { is_passed: Some(false), reason }) => {
                Outcome::failed(reason.unwrap_or_else(|| format!("program `{name}` says no")))
            }
            Ok(Written { is_passed: None, reason }) => {
                Outcome::ungraded(reason.unwrap_or_else(|| format!("program `{name}` does not know")))
            }
            Err(error) => Outcome::ungraded(format!("program `{name}` wrote no verdict: {error}")),
        },
        (None, _) => Outcome::ungraded(format!("program `{name}` wrote nothing")),
        _ => Outcome::ungraded(format!("program `{name}` wrote more than one line")),
    }
}

/// A program and all it has started; killed when this goes, unless it was released.
struct Group(#[cfg(unix)] Option<rustix::process::Pid>);

impl Group {
    #[cfg(unix)]
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }

    #[cfg(not(unix))]
    fn of(_: &Child) -> Self {
        Self()
    }
}

impl Group {
    /// Leaves it alone.
    fn release(&mut self) {
        #[cfg(unix)]
        {
            self.0 = None;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout_s: f64) -> ProgramConfig {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        ProgramConfig { name: "p".to_owned(), command, timeout_s }
    }

    async fn outcome(script: &str) -> (Option<bool>, String) {
        let Outcome { is_passed, reason } =
            run(&shell(script, 20.0), b"{\"sample\": 3}".to_vec()).await.unwrap();
        (is_passed, reason.unwrap_or_default())
    }

    #[tokio::test]
    async fn what_a_program_writes_is_the_verdict_and_what_it_does_wrong_none() {
        for (script, passed, reason) in [
            (r#"cat > /dev/null; echo '{"is_passed": true}'"#, Some(true), ""),
            (r#"echo '{"is_passed": false, "reason": "too long"}'"#, Some(false), "too long"),
            (r#"echo '{"is_passed": null, "reason": "no idea"}'"#, None, "no idea"),
            (
                r#"read line; case "$line" in *'"sample": 3'*) echo '{"is_passed": true}';; esac"#,
                Some(true),
                "",
            ),
            ("echo oh >&2; exit 3", None, "exit status: 3: oh"),
            ("kill -9 $$", None, "signal: 9"),
            ("true", None, "wrote nothing"),
            ("echo yes", None, "wrote no verdict"),
            (r#"echo '{"is_passed": 1}'"#, None, "wrote no verdict"),
            (r#"echo '{"is_passed": true}'; echo '{"is_passed": true}'"#, None, "more than one line"),
            (r#"echo '{"is_passed": true}'; exit 1"#, None, "exit status: 1"),
        ] {
            let (is_passed, said) = outcome(script).await;
            assert_eq!(is_passed, passed, "{script}");
            assert!(said.contains(reason) && said.is_empty() == reason.is_empty(), "{script}: {said}");
        }
    }

    #[tokio::test]
    async fn a_program_is_killed_with_all_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!("(sleep 2; touch {}) & sleep 60", mark.display());
        let begun = std::time::Instant::now();
        let Outcome { is_passed, reason } = run(&shell(&script, 0.2), Vec::new()).await.unwrap();
        assert_eq!((is_passed, reason.unwrap().contains("longer than 0.2 s")), (None, true));
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!mark.exists(), "the child of the program was left running");
    }

    #[tokio::test]
    async fn one_that_is_not_there_stops_the_stage() {
        let config = ProgramConfig { command: vec!["/no/such/program".to_owned()], ..shell("", 1.0) };
        assert!(run(&config, Vec::new()).await.unwrap_err().to_string().contains("/no/such/program"));
    }
}
