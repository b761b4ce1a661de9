//! The advantage query on synthetic tables: what `tests/compare/advantages.py` measures.
//!
//! ```text
//! advantages make FOLDER N_GENERATIONS N_PARTS     generations-00000.parquet, rewards-00000.parquet and so on
//! advantages run FOLDER [SETTINGS [BYTES]]         advantages-00000.parquet and so on; SETTINGS is JSON, BYTES the limit of
//!                                                  memory for joins, sums and sorts
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use envace_schemas::tables::{GenerationRow, RewardRow};
use envace_schemas::{Decimal, Row, Table, read_keys, write_batches, write_rows};
use envace_sql::{AdvantageParams, QuerySession, check_covered, queries};

const SAMPLES: i32 = 8;
/// Generations of a trajectory: from 4 to 12, every third of the rehearsal role.
const GENERATIONS: std::ops::RangeInclusive<u64> = 4..=12;

type Done<T> = Result<T, Box<dyn Error>>;

fn main() -> Done<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", folder, n, parts] => make(Path::new(folder), n.parse()?, parts.parse()?),
        ["run", folder] => run(Path::new(folder), &AdvantageParams::default(), None),
        ["run", folder, settings] => run(Path::new(folder), &serde_json::from_str(settings)?, None),
        ["run", folder, settings, limit] => {
            run(Path::new(folder), &serde_json::from_str(settings)?, Some(limit.parse()?))
        }
        _ => Err("advantages make FOLDER N_GENERATIONS N_PARTS | run FOLDER [SETTINGS [BYTES]]".into()),
    }
}

/// Numbers that look random and are the same everywhere (splitmix64).
fn hash(index: u64) -> u64 {
    let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn make(folder: &Path, n_generations: u64, n_parts: u64) -> Done<()> {
    std::fs::create_dir_all(folder)?;
    let (mut task, mut made) = (0_u64, 0_u64);
    for part in 0..n_parts.max(1) {
        let until = n_generations * (part + 1) / n_parts.max(1);
        let (mut generations, mut rewards) = (Vec::new(), Vec::new());
        while made < until {
            for sample in 0..SAMPLES {
                let trajectory = task * 8 + u64::from(sample.unsigned_abs());
                let n =
                    GENERATIONS.start() + hash(trajectory) % (GENERATIONS.end() - GENERATIONS.start() + 1);
                let scaled = i64::try_from(hash(trajectory ^ 1) % 11)? * 100_000_000;
                for role in ["actor", "rehearsal"] {
                    rewards.push(reward(
                        task,
                        sample,
                        role,
                        Decimal::from_scaled(scaled).ok_or("no reward")?,
                    ));
                }
                for index in 0..n {
                    generations.push(generation(task, sample, i32::try_from(index)?, trajectory));
                }
                made += n;
            }
            task += 1;
        }
        write(&folder.join(format!("generations-{part:05}.parquet")), &generations)?;
        write(&folder.join(format!("rewards-{part:05}.parquet")), &rewards)?;
    }
    Ok(())
}

fn write<R: Row>(path: &Path, rows: &[R]) -> Done<()> {
    Ok(std::fs::write(path, write_rows(rows)?)?)
}

fn generation(task: u64, sample: i32, index: i32, trajectory: u64) -> GenerationRow {
    let draw = hash(trajectory.wrapping_mul(31).wrapping_add(u64::from(index.unsigned_abs())));
    GenerationRow {
        task_id: format!("task-{task:08}"),
        sample,
        generation_index: index,
        role: if index % 3 == 2 { "rehearsal" } else { "actor" }.to_owned(),
        checkpoint: "c".to_owned(),
        user_turn: index / 4,
        turn: index,
        call_index: None,
        try_index: 0,
        sequence_index: 0,
        span_start: 0,
        n_tokens: 20,
        n_prompt_tokens: 100,
        text: format!("output {draw:016x} of some length, as an output has"),
        finish_reason: "stop".to_owned(),
        error_code: draw.is_multiple_of(50).then(|| "NO_TAG".to_owned()),
        is_blank: draw % 40 == 1,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
    }
}

fn reward(task: u64, sample: i32, role: &str, reward: Decimal) -> RewardRow {
    // One in thirty is ungraded; a quarter keeps two user turns only.
    let draw = hash(task.wrapping_mul(8).wrapping_add(u64::from(sample.unsigned_abs())) ^ 2);
    RewardRow {
        task_id: format!("task-{task:08}"),
        sample,
        role: role.to_owned(),
        reward: (!draw.is_multiple_of(30)).then_some(reward),
        ungraded_reason: None,
        is_success: None,
        n_graded: 3,
        n_items: 3,
        n_kept_user_turns: if draw.is_multiple_of(4) { 2 } else { 3 },
        n_scripted_user_turns: 3,
    }
}

fn run(folder: &Path, params: &AdvantageParams, memory_limit: Option<usize>) -> Done<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(8 << 20).build()?;
    runtime.block_on(async {
        for part in 0.. {
            let path = |name: &str| -> PathBuf { folder.join(format!("{name}-{part:05}.parquet")) };
            if !path("generations").is_file() {
                break;
            }
            let read = |table: Table, name: &str| -> Done<(Table, Bytes)> {
                Ok((table, std::fs::read(path(name))?.into()))
            };
            let files = [read(Table::Generations, "generations")?, read(Table::Rewards, "rewards")?];
            let (query, output) = (queries::ADVANTAGES, Table::Advantages);
            let session = QuerySession::default().with_memory_limit(memory_limit);
            let rows = session
                .run_query_on_files(query.name, query.text, &files, &params.to_params(), output)
                .await?;
            let keys = read_keys(files[0].0, files[0].1.clone())?;
            check_covered(query.name, (output, &rows), (files[0].0, &keys))?;
            std::fs::write(path("advantages"), write_batches(output, &rows)?)?;
        }
        Ok(())
    })
}
