// Rows with the columns that the queries look at; the rest is filler.

use envace_schemas::tables::{GenerationRow, RewardRow, TrajectoryRow, VerdictRow};
use envace_schemas::{Decimal, Query, Row, Table, batches_of, rows_of};
use envace_sql::{Param, QuerySession, SqlError};

pub fn decimal(text: &str) -> Decimal {
    text.parse().unwrap()
}

pub fn generation(task_id: &str, sample: i32, generation_index: i32, role: &str) -> GenerationRow {
    GenerationRow {
        task_id: task_id.to_owned(),
        sample,
        generation_index,
        role: role.to_owned(),
        checkpoint: "c".to_owned(),
        user_turn: 0,
        turn: 0,
        call_index: None,
        try_index: 0,
        sequence_index: 0,
        span_start: 0,
        n_tokens: 5,
        n_prompt_tokens: 0,
        text: String::new(),
        finish_reason: "stop".to_owned(),
        error_code: None,
        is_blank: false,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
    }
}

pub fn trajectory(
    task_id: &str,
    sample: i32,
    n_user_turns: i32,
    n_scripted_user_turns: i32,
) -> TrajectoryRow {
    TrajectoryRow {
        task_id: task_id.to_owned(),
        sample,
        purpose: "train".to_owned(),
        split: "train".to_owned(),
        family: None,
        environment: "rehearsal".to_owned(),
        end_reason: "finished".to_owned(),
        end_detail: None,
        is_partial: false,
        n_user_turns,
        n_scripted_user_turns,
        n_turns: n_user_turns,
        n_calls: 0,
        n_malformed_calls: 0,
        n_rehearsals: 0,
        n_malfunctions: 0,
        n_actor_tokens: 0,
        n_rehearsal_tokens: 0,
        final_state_hash: None,
        state_differences: None,
    }
}

pub fn verdict(sample: i32, user_turn: i32, item: &str, weight: &str, is_passed: Option<bool>) -> VerdictRow {
    VerdictRow {
        task_id: "t".to_owned(),
        sample,
        user_turn,
        grader: "g".to_owned(),
        item: item.to_owned(),
        is_passed,
        reason: None,
        weight: decimal(weight),
        is_required: false,
        request_hash: None,
    }
}

pub fn reward(task_id: &str, sample: i32, role: &str, reward: Option<Decimal>) -> RewardRow {
    RewardRow {
        task_id: task_id.to_owned(),
        sample,
        role: role.to_owned(),
        reward,
        ungraded_reason: None,
        is_success: None,
        n_graded: 1,
        n_items: 1,
        n_kept_user_turns: 1,
        n_scripted_user_turns: 1,
    }
}

/// A table of an input, from rows.
pub fn table_of<R: Row>(rows: &[R]) -> (Table, Vec<arrow::array::RecordBatch>) {
    (R::TABLE, batches_of(rows).unwrap())
}

/// Runs a query of envace and returns its rows.
pub async fn rows<R: Row>(
    query: Query,
    inputs: &[(Table, Vec<arrow::array::RecordBatch>)],
    params: &[Param],
    n_partitions: usize,
) -> Result<Vec<R>, SqlError> {
    let session = QuerySession::new(n_partitions);
    let batches = session.run_query(query.name, query.text, inputs, params, R::TABLE).await?;
    Ok(rows_of(&batches).unwrap())
}

/// Runs a future to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
