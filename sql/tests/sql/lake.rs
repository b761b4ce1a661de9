//! Questions to a whole store.

use std::error::Error;
use std::sync::Arc;

use crate::common::{block_on, reward};
use envace_schemas::Table;
use envace_schemas::tables::{RewardRow, SequenceRow};
use envace_sql::{Answer, Format, Lake, SqlError, StoredOutput};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

const SPLIT: &str = "part-00001.parquet";

/// Puts one part and returns its path.
fn put(store: &InMemory, folder: &str, file: &str, bytes: Vec<u8>) -> Path {
    let path = Path::from(format!("{folder}/{file}"));
    block_on(store.put(&path, bytes.into())).unwrap();
    path
}

fn rewards(sample: i32, earned: &str) -> Vec<u8> {
    let rows: Vec<RewardRow> = vec![reward("t", sample, "actor", Some(crate::common::decimal(earned)))];
    envace_schemas::write_rows(&rows).unwrap()
}

/// Rewards of run `a`: step 0 has two attempts and the second two parts, step 1 one; and one sequence.
fn lake() -> Lake {
    let store = InMemory::new();
    let mut outputs = Vec::new();
    let folder = |step: i64, attempt: i64| {
        format!("tables/rewards/run=a/stage=score/step={step:06}/attempt={attempt}")
    };
    let mut add = |table, step, attempt, is_active, paths| {
        let (run, stage) = ("a".to_owned(), "score".to_owned());
        outputs.push(StoredOutput { table, run, stage, step, attempt, is_active, paths });
    };
    let part = "part-00000.parquet";
    add(Table::Rewards, 0, 0, false, vec![put(&store, &folder(0, 0), part, rewards(0, "0.1"))]);
    let paths = vec![
        put(&store, &folder(0, 1), part, rewards(0, "0.2")),
        put(&store, &folder(0, 1), SPLIT, rewards(1, "0.3")),
    ];
    // In the folder of a known attempt, and in no manifest.
    put(&store, &folder(0, 1), "part-00002.parquet", rewards(2, "100"));
    add(Table::Rewards, 0, 1, true, paths);
    add(Table::Rewards, 1, 0, true, vec![put(&store, &folder(1, 0), part, rewards(0, "0.5"))]);
    let sequence = SequenceRow {
        task_id: "t".to_owned(),
        sample: 0,
        sequence_index: 0,
        role: "actor".to_owned(),
        token_ids: vec![7, 8],
        loss_mask: vec![false, true],
        sampling_logprobs: vec![None, Some(-0.5)],
    };
    let bytes = envace_schemas::write_rows(&[sequence]).unwrap();
    add(Table::Sequences, 1, 0, true, vec![put(&store, "tables/sequences/run=é 5% *", part, bytes)]);
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    Lake::open(store, &outputs).unwrap()
}

fn ask(lake: &Lake, text: &str) -> Answer {
    block_on(lake.query(text)).unwrap()
}

fn csv(answer: &Answer) -> String {
    String::from_utf8(answer.write(Format::Csv).unwrap()).unwrap()
}

#[test]
fn the_latest_attempts_are_the_table_and_all_are_its_history() {
    let lake = lake();
    let text = "SELECT run, stage, step, attempt, sample, reward FROM rewards ORDER BY step, sample";
    assert_eq!(
        csv(&ask(&lake, text)),
        "run,stage,step,attempt,sample,reward\n\
         a,score,0,1,0,0.200000000\n\
         a,score,0,1,1,0.300000000\n\
         a,score,1,0,0,0.500000000\n"
    );
    assert_eq!(csv(&ask(&lake, "SELECT sum(reward) AS s FROM history.rewards")), "s\n1.100000000\n");
    assert_eq!(csv(&ask(&lake, "SELECT count(*) AS n FROM rewards WHERE step = 1 AND run = 'a'")), "n\n1\n");
    assert_eq!(
        csv(&ask(&lake, "SELECT r.step FROM rewards r JOIN sequences USING (run, step, task_id, sample)")),
        "step\n1\n"
    );
}

#[test]
fn tables_that_are_not_there_yet_are_empty() {
    let lake = lake();
    for table in Table::ALL {
        let answer = ask(&lake, &format!("SELECT * FROM {table}"));
        let names: Vec<_> = answer.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let mut expected = vec!["run", "stage", "step", "attempt"];
        let columns = table.columns();
        expected.extend(columns.iter().map(|column| column.name));
        assert_eq!(names, expected);
        let n_rows = match table {
            Table::Rewards => 3,
            Table::Sequences => 1,
            _ => 0,
        };
        assert_eq!(answer.n_rows(), n_rows, "{table}");
    }
    let shown = ask(&lake, "SHOW TABLES");
    assert!(shown.n_rows() >= 2 * Table::ALL.len());
    assert!(ask(&lake, "DESCRIBE rewards").n_rows() > 0);
    assert!(ask(&lake, "EXPLAIN SELECT 1").n_rows() > 0);
}

#[test]
fn nothing_is_written() {
    let lake = lake();
    for text in [
        "DELETE FROM rewards",
        "INSERT INTO rewards SELECT * FROM rewards",
        "CREATE TABLE x AS SELECT 1",
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/hostname'",
        "COPY rewards TO '/tmp/envace-test.csv'",
        "DROP VIEW rewards",
        "SET datafusion.execution.batch_size = 1",
        "EXPLAIN ANALYZE COPY rewards TO '/tmp/envace-test.csv'",
        "SELECT 1; DROP VIEW rewards",
    ] {
        let error = block_on(lake.query(text)).unwrap_err();
        assert!(matches!(error, SqlError::NotOneSelect { .. }), "{text}: {error:?}");
    }
    // Nor is any file outside the store read.
    let error = block_on(lake.query("SELECT * FROM '/etc/hostname'")).unwrap_err();
    assert!(matches!(error, SqlError::Plan { .. }), "{error:?}");
    let error = block_on(lake.query("SELECT wrong FROM rewards")).unwrap_err();
    assert_eq!(error.to_string(), "query `sql` does not fit its tables");
    assert!(error.source().unwrap().to_string().starts_with("No field named wrong"), "{error:?}");
    assert!(error.hint().unwrap().contains("history.rewards"), "{error:?}");
}

#[test]
fn answers_are_written_in_every_format() {
    let lake = lake();
    let answer = ask(&lake, "SELECT sample, reward, ungraded_reason FROM rewards WHERE step = 1");
    let text = |format| String::from_utf8(answer.write(format).unwrap()).unwrap();
    assert_eq!(text(Format::Csv), "sample,reward,ungraded_reason\n0,0.500000000,\n");
    assert_eq!(text(Format::JsonLines), "{\"sample\":0,\"reward\":0.500000000,\"ungraded_reason\":null}\n");
    assert_eq!(
        text(Format::Table),
        "+--------+-------------+-----------------+\n\
         | sample | reward      | ungraded_reason |\n\
         +--------+-------------+-----------------+\n\
         | 0      | 0.500000000 |                 |\n\
         +--------+-------------+-----------------+\n"
    );
    let whole = ask(
        &lake,
        "SELECT task_id, sample, sequence_index, role, token_ids, loss_mask, sampling_logprobs FROM sequences",
    );
    let bytes = whole.write(Format::Parquet).unwrap();
    let rows: Vec<SequenceRow> = envace_schemas::read_rows(bytes.into()).unwrap();
    assert_eq!(rows[0].sampling_logprobs, [None, Some(-0.5)]);
    assert_eq!(csv(&ask(&lake, "SELECT token_ids FROM sequences")), "token_ids\n\"[7, 8]\"\n");
    let none = ask(&lake, "SELECT sample FROM rewards WHERE step = 9");
    assert_eq!(csv(&none), "sample\n");
    assert!(!none.write(Format::Parquet).unwrap().is_empty());
    assert_eq!(none.write(Format::JsonLines).unwrap(), b"");
    assert_eq!("csv".parse::<Format>().unwrap(), Format::Csv);
    assert_eq!(
        "xml".parse::<Format>().unwrap_err().to_string(),
        "format must be `table`, `csv`, `jsonl` or `parquet`: xml"
    );
}
