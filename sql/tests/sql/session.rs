//! What a person's own query may do, and what is said when it does something else.

use std::error::Error;

use crate::common::{block_on, decimal, generation, reward, table_of};
use envace_schemas::Table;
use envace_schemas::tables::{AdvantageRow, RewardRow, TimingRow};
use envace_sql::{AdvantageParams, QuerySession, ScalarValue, SqlError, queries};

/// The error of a query that has `generations` and must make `timings (subject, metric, value)`.
fn error_of(text: &str) -> SqlError {
    run(text).unwrap_err()
}

fn run(text: &str) -> Result<Vec<TimingRow>, SqlError> {
    let inputs = [table_of(&[generation("b", 0, 0, "actor"), generation("a", 0, 1, "actor")])];
    let params = [("factor", ScalarValue::Float64(Some(2.0)))];
    let session = QuerySession::new(2);
    let made = block_on(session.run_query("mine.sql", text, &inputs, &params, Table::Timings))?;
    Ok(envace_schemas::rows_of(&made).unwrap())
}

/// Message, cause and hint on three lines; the chain must end after the cause.
fn shown(error: &SqlError) -> String {
    let cause = error.source().map(|source| {
        assert!(source.source().is_none());
        format!("\n{source}")
    });
    let hint = error.hint().map(|hint| format!("\nhint: {hint}"));
    format!("{error}{}{}", cause.unwrap_or_default(), hint.unwrap_or_default())
}

#[test]
fn columns_are_found_by_name_converted_and_sorted() {
    let text = "SELECT 3 AS value, 'm' AS metric, task_id AS subject FROM generations";
    let expected = ["a", "b"].map(|subject| TimingRow {
        subject: subject.to_owned(),
        metric: "m".to_owned(),
        value: 3.0,
    });
    assert_eq!(run(text).unwrap(), expected);
    let text =
        "SELECT task_id AS subject, 'm' AS metric, $factor * generation_index AS value FROM generations;";
    assert_eq!(run(text).unwrap()[0].value, 2.0);
}

#[test]
fn messages_name_what_is_wrong() {
    for (text, expected) in [
        (
            "SELECT task_id AS subject, 'm' AS metric FROM generations",
            "query `mine.sql`: column `timings.value` is missing, expected Float64",
        ),
        (
            "SELECT task_id AS subject, 'm' AS metric, 'x' AS value FROM generations",
            "query `mine.sql`: column `timings.value` is Utf8, expected Float64\n\
             hint: write CAST(value AS ...) to make it Float64",
        ),
        (
            "SELECT task_id AS subject, 'm' AS metric, 1.0 AS value, sample FROM generations",
            "query `mine.sql`: column `timings.sample` is Int32, expected no such column\n\
             hint: leave it out of the SELECT list",
        ),
        (
            "SELECT task_id AS subject, 'm' AS metric, NULL AS value FROM generations",
            "query `mine.sql`: column `timings.value` has 2 NULL values, expected none",
        ),
        (
            "SELECT 's' AS subject, 'm' AS metric, 1.0 AS value FROM generations",
            "query `mine.sql`: table `timings` has more than one row of subject s, metric m\n\
             hint: a join may match more than one row",
        ),
        (
            "SELECT nothing FROM (SELECT sample, role FROM generations)",
            "query `mine.sql` does not fit its tables\n\
             No field named nothing. Valid fields are generations.sample, generations.role\n\
             hint: tables it can read: generations; parameters: $factor",
        ),
        (
            "SELECT * FROM elsewhere",
            "query `mine.sql` does not fit its tables\n\
             table 'datafusion.public.elsewhere' not found\n\
             hint: tables it can read: generations; parameters: $factor",
        ),
        (
            "SELECT task_id AS subject, 'm' AS metric, $scale AS value FROM generations",
            "query `mine.sql` does not fit its tables\n\
             No value found for placeholder with name $scale\n\
             hint: tables it can read: generations; parameters: $factor",
        ),
        (
            "SELECT 1; SELECT 2",
            "query `mine.sql` must be one SELECT: it holds 2 statements\n\
             hint: stored tables change through stages and `put` only",
        ),
        (
            "-- Nothing.",
            "query `mine.sql` must be one SELECT: it is empty\n\
             hint: stored tables change through stages and `put` only",
        ),
        (
            "DROP TABLE generations",
            "query `mine.sql` must be one SELECT: it is DROP\n\
             hint: stored tables change through stages and `put` only",
        ),
        (
            "COPY generations TO 'x.csv'",
            "query `mine.sql` must be one SELECT: it is COPY\n\
             hint: stored tables change through stages and `put` only",
        ),
        (
            "EXPLAIN SELECT 1",
            "query `mine.sql` must be one SELECT: it is EXPLAIN\n\
             hint: stored tables change through stages and `put` only",
        ),
        (
            "SELECT 1 / (sample - sample) AS value, 'm' AS metric, task_id AS subject FROM generations",
            "query `mine.sql` failed\nDivide by zero error",
        ),
    ] {
        assert_eq!(shown(&error_of(text)), expected, "{text}");
    }
    let error = error_of("SELEC 1");
    assert!(
        shown(&error).starts_with("query `mine.sql` is no valid SQL\nsql parser error: Expected"),
        "{error:?}"
    );
}

#[test]
fn a_float_is_no_exact_reward() {
    let text = "SELECT task_id, sample, 'actor' AS role, 0.5 AS reward, NULL AS ungraded_reason, TRUE AS is_success, \
                1 AS n_graded, 1 AS n_items, 1 AS n_kept_user_turns, 1 AS n_scripted_user_turns FROM generations";
    let inputs = [table_of(&[generation("b", 0, 0, "actor")])];
    let session = QuerySession::new(1);
    let made = block_on(session.run_query("mine.sql", text, &inputs, &[], Table::Rewards));
    assert_eq!(
        made.unwrap_err().to_string(),
        "query `mine.sql`: column `rewards.reward` is Float64, expected Decimal128(18, 9)"
    );
    // More digits than the column has would be rounded in silence.
    let longer = text.replace("0.5", "CAST('0.5' AS DECIMAL(12, 10))");
    let made = block_on(session.run_query("mine.sql", &longer, &inputs, &[], Table::Rewards));
    assert_eq!(
        made.unwrap_err().to_string(),
        "query `mine.sql`: column `rewards.reward` is Decimal128(12, 10), expected Decimal128(18, 9)"
    );
    let text = text.replace("0.5", "CAST('0.5' AS DECIMAL(3, 1))");
    let made = block_on(session.run_query("mine.sql", &text, &inputs, &[], Table::Rewards)).unwrap();
    let rows: Vec<RewardRow> = envace_schemas::rows_of(&made).unwrap();
    assert_eq!(rows[0].reward, Some(decimal("0.5")));
}

/// Generations and rewards of 40 tasks, and what the query of envace makes of them in memory.
fn many() -> ([(Table, Vec<arrow::array::RecordBatch>); 2], Vec<AdvantageRow>) {
    let of_task = |task: i32| (0..4).map(move |sample| (format!("task-{task:03}"), sample));
    let keys: Vec<(String, i32)> = (0..40).flat_map(of_task).collect();
    let generations: Vec<_> = keys
        .iter()
        .flat_map(|(task, sample)| (0..3).map(|g| generation(task, *sample, g, "actor")))
        .collect();
    let rewards: Vec<_> = keys
        .iter()
        .map(|(task, sample)| {
            reward(task, *sample, "actor", Some(decimal(["0", "0.5", "1", "0.25"][*sample as usize])))
        })
        .collect();
    let inputs = [table_of(&generations), table_of(&rewards)];
    let (query, params) = (queries::ADVANTAGES, AdvantageParams::default().to_params());
    let made =
        block_on(QuerySession::new(2).run_query(query.name, query.text, &inputs, &params, Table::Advantages));
    let rows = envace_schemas::rows_of(&made.unwrap()).unwrap();
    (inputs, rows)
}

#[test]
fn over_files_and_within_a_limit_of_memory_the_result_is_the_same_or_an_error() {
    let (inputs, expected) = many();
    assert!(expected.iter().any(|row| row.advantage > Some(0.0)));
    let files = inputs.map(|(table, batches)| {
        (table, bytes::Bytes::from(envace_schemas::write_batches(table, &batches).unwrap()))
    });
    let (query, params) = (queries::ADVANTAGES, AdvantageParams::default().to_params());
    let run = |n_partitions: usize, limit: Option<usize>| {
        let session = QuerySession::new(n_partitions).with_memory_limit(limit);
        block_on(session.run_query_on_files(query.name, query.text, &files, &params, Table::Advantages))
    };
    for n_partitions in [1, 2, 3, 8] {
        for limit in [None, Some(64 << 20)] {
            let rows: Vec<AdvantageRow> =
                envace_schemas::rows_of(&run(n_partitions, limit).unwrap()).unwrap();
            assert_eq!(rows, expected, "{n_partitions} partitions, {limit:?}");
        }
    }
    let error = run(2, Some(1000)).unwrap_err();
    assert!(matches!(error, SqlError::Memory { limit: 1000, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("tasks.per_part"), "{error:?}");
}
