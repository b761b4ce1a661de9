//! The judge against a server that fails in every way a server can.

mod choices;
mod faults;
mod stops;

use std::path::{Path, PathBuf};

use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_jobs::error::JobError;
use envace_jobs::score::judge::Refresh;
use envace_pipeline::{StageOutput, Store};
use envace_schemas::tables::{JudgeCallRow, RewardRow, VerdictRow};
use envace_tests::judge_server::Seen;
use envace_tests::judged_run::{Part, RUN, stored, task, trajectory};
use serde_json::{Value, json};

/// Set by cargo for every test; its value, a sentence, stands in for an API key.
pub const KEY_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";
pub const KEY: &str = env!("CARGO_PKG_DESCRIPTION");

pub fn config(urls: &[&str], judge: &str, limits: &str) -> String {
    let urls = json!(urls);
    format!(
        "[score]\nmax_ungraded_share = 1.0\n[score.judge]\nmodel = \"judge\"\n{judge}\n[execution.judge]\nurls = {urls}\n\
         api_key_env = \"{KEY_VARIABLE}\"\nretry_delay_s = 0.01\nretries = 2\ncall_timeout_s = 5.0\n{limits}\n"
    )
}

pub fn part(task_id: &str, checklist: &[Vec<Value>], n_samples: i32) -> Part {
    let task = task(task_id, checklist);
    let n_user_turns = checklist.len() as i32;
    let trajectories = (0..n_samples).map(|sample| trajectory(&task, sample, n_user_turns)).collect();
    (task, trajectories)
}

pub async fn run_of(dir: &Path, config: &str, parts: Vec<Part>) -> RunContext {
    let store = Store::open(&dir.display().to_string()).unwrap();
    stored(store, config, parts).await.unwrap()
}

pub struct Scored {
    pub verdicts: Vec<VerdictRow>,
    pub calls: Vec<JudgeCallRow>,
    pub rewards: Vec<RewardRow>,
}

pub async fn scored(ctx: &RunContext) -> Scored {
    Stage::Score.run(ctx, 0).await.unwrap();
    let output = StageOutput::latest(&ctx.store, RUN, "score", 0).await.unwrap();
    Scored {
        verdicts: output.read_all().await.unwrap(),
        calls: output.read_all().await.unwrap(),
        rewards: output.read_all().await.unwrap(),
    }
}

pub fn again(ctx: &RunContext, refresh: Refresh) -> RunContext {
    RunContext { new_attempt: true, refresh, ..ctx.clone() }
}

/// The name of the item in a prompt.
pub fn point(seen: &Seen) -> &str {
    let after = seen.prompt().split_once("Is point ").map_or("", |(_, after)| after);
    after.split_once(" met?").map_or("", |(point, _)| point)
}

pub fn refusal(error: JobError) -> String {
    let hint = error.hint().unwrap_or_default().to_owned();
    format!("{error}; {hint}")
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}
