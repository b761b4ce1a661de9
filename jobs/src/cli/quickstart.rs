use std::process::ExitCode;
use std::time::Instant;

use envace_sql::Format;

use super::StoreArgs;
use super::inspect::{lake, print_bytes};
use super::stage::report;
use crate::config::Config;
use crate::context::RunContext;
use crate::drive::drive;
use crate::task_set::{self, TaskSource};
use crate::world::{self, Split};

/// The run of the quickstart, apart from its seed.
const CONFIG: &str = include_str!("../../assets/quickstart.toml");
/// Name and seed of its task set. All runs share it, so that their scores can be compared.
const TASK_SET: (&str, u64) = ("world", 0);
const COUNTS: [(Split, u64); 3] = [(Split::Train, 600), (Split::HeldOut, 192), (Split::Drift, 96)];

/// Arguments of `quickstart`.
#[derive(Debug, clap::Args)]
pub struct QuickstartArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Seed of every random draw of the run
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: u64,
}

impl QuickstartArgs {
    /// Trains the bundled policy and prints its scores before and after.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        let store = self.store.open()?;
        let (set, task_seed) = TASK_SET;
        let rows = world::tasks(task_seed, &COUNTS, 0);
        task_set::store(&store, set, TaskSource::World { seed: task_seed, slips: 0 }, &rows, false).await?;
        let mut config = Config::parse(CONFIG, "quickstart")?;
        config.seed = self.seed;
        config.evaluate.every = u32::try_from(self.steps.max(1))?;
        let run = format!("quickstart-{}", self.seed);
        let ctx = RunContext::open(store.clone(), &run, Some(config), false).await?;
        eprintln!("store {}, run {run}, {} tasks, {} steps", store.uri(), rows.len(), self.steps);
        drive(&ctx, 0..self.steps, None, &mut |stage, step, outcome| report(stage, step, outcome)).await?;
        let lake = lake(&store).await?;
        print_bytes(&lake.query(&scores(&run)).await?.write(Format::Table)?)?;
        eprintln!(
            "\n{:.0} s in all. Held-out tasks are about what training never asked about; drift has renamed",
            begun.elapsed().as_secs_f64()
        );
        eprintln!(
            "tools, arguments and responses. Success means that the calls, really executed, led to the"
        );
        eprintln!("right state and the replies say what they must. No call was executed in training.");
        eprintln!("\nTry next:");
        let uri = if store.uri() == "envace-store" {
            String::new()
        } else {
            format!(" --store {}", self.store.store)
        };
        for query in queries(&run) {
            eprintln!("\n  envace-jobs sql{uri} \"{query}\"");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn scores(run: &str) -> String {
    format!(
        "SELECT split, family, step, n_tasks, round(100 * success_rate, 1) AS success_percent, \
         round(100 * standard_error, 1) AS standard_error, round(turns_mean, 2) AS turns_mean \
         FROM evaluations WHERE run = '{run}' ORDER BY split DESC, family = 'all' DESC, family, step"
    )
}

fn queries(run: &str) -> [String; 3] {
    [
        format!(
            "SELECT step, role, round(avg(reward), 3) AS reward, count(*) AS trajectories FROM rewards \
             WHERE run = '{run}' AND stage = 'score' GROUP BY step, role ORDER BY role, step"
        ),
        format!(
            "SELECT grader, item, reason, count(*) AS n FROM verdicts WHERE run = '{run}' AND stage = 'evaluate' \
             AND NOT is_passed GROUP BY grader, item, reason ORDER BY n DESC LIMIT 10"
        ),
        format!(
            "SELECT tool_name, arguments, text FROM messages WHERE run = '{run}' \
             AND written_by = 'rehearsal' ORDER BY step DESC LIMIT 10"
        ),
    ]
}
