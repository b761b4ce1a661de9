use super::declare::row;

row! {
    /// A row of `trajectories`.
    TrajectoryRow = "trajectories", version 1, grain ["task_id", "sample"] {
        /// The task.
        task_id: String,
        /// 0-based index in the group; in an evaluation, the trial.
        sample: i32,
        /// `train` or `evaluate`.
        purpose: String,
        /// Split of the task.
        split: String,
        /// Kind of task. NULL: its source states none.
        family: Option<String>,
        /// What answered the calls: `rehearsal`, `replay`, `world`.
        environment: String,
        /// Why it ended: `finished`, or the cap or error that stopped it.
        end_reason: String,
        /// What exactly went wrong, in words. NULL: nothing did.
        end_detail: Option<String>,
        /// Whether the last user turn was cut off before a final reply.
        is_partial: bool,
        /// User turns begun.
        n_user_turns: i32,
        /// User turns the task has.
        n_scripted_user_turns: i32,
        /// Actor generations.
        n_turns: i32,
        /// Well-formed tool calls of the actor.
        n_calls: i32,
        /// Actor outputs whose tool calls could not be parsed.
        n_malformed_calls: i32,
        /// Rehearsal generations, retries included.
        n_rehearsals: i32,
        /// Rehearsal generations that broke the output format.
        n_malfunctions: i32,
        /// Tokens the actor sampled.
        n_actor_tokens: i64,
        /// Tokens the rehearsal role sampled.
        n_rehearsal_tokens: i64,
        /// Hex digest of the executable world's final state. NULL: no world ran.
        final_state_hash: Option<String>,
        /// JSON of the differences between the world's final state and the expected one, empty list if none.
        /// NULL: no world ran.
        state_differences: Option<String>,
    }
}

row! {
    /// A row of `messages`.
    MessageRow = "messages", version 1, grain ["task_id", "sample", "message_index"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// 0-based place in the transcript.
        message_index: i32,
        /// 0-based user turn; the opening's system message belongs to user turn 0.
        user_turn: i32,
        /// 0-based turn, of an actor message and the responses to its calls. NULL: a system or user message.
        turn: Option<i32>,
        /// `system`, `user`, `assistant` or `tool`.
        speaker: String,
        /// Who wrote it: `script`, `actor`, `rehearsal`, `replay`, `world`, or `envace` for an error report.
        written_by: String,
        /// What the next reader sees, without reasoning and without tool calls.
        text: String,
        /// Reasoning inside the think tags. NULL: there was none.
        reasoning: Option<String>,
        /// JSON list of `{id, name, arguments}` an actor message makes. NULL: it makes none.
        tool_calls: Option<String>,
        /// The call a tool message answers. NULL: it answers none.
        call_id: Option<String>,
        /// Tool of that call. NULL: no call.
        tool_name: Option<String>,
        /// JSON text of that call's arguments. NULL: no call.
        arguments: Option<String>,
        /// The generation it was written in. NULL: no policy wrote it.
        generation_index: Option<i32>,
        /// Error it reports or contains. NULL: none.
        error_code: Option<String>,
    }
}

row! {
    /// A row of `generations`.
    GenerationRow = "generations", version 1, grain ["task_id", "sample", "generation_index"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// 0-based, by the trajectory's structure: never by completion order.
        generation_index: i32,
        /// `actor` or `rehearsal`.
        role: String,
        /// Digest of the weights that sampled it.
        checkpoint: String,
        /// 0-based user turn.
        user_turn: i32,
        /// 0-based turn in the trajectory.
        turn: i32,
        /// 0-based call it answers. NULL: an actor generation.
        call_index: Option<i32>,
        /// 0, or 1 and so on when the rehearsal outputs before it, at the same call, were malformed.
        try_index: i32,
        /// The sequence it lies in.
        sequence_index: i32,
        /// First sampled token's place in that sequence.
        span_start: i32,
        /// Sampled tokens, the stop token included.
        n_tokens: i32,
        /// Tokens before the span.
        n_prompt_tokens: i32,
        /// The sampled tokens as text, after the `<think>` of the prompt if it opened one.
        text: String,
        /// `stop`, `length`.
        finish_reason: String,
        /// How it broke its format. NULL: it did not.
        error_code: Option<String>,
        /// Whether it holds no visible text at all.
        is_blank: bool,
        /// Sampling temperature; 0 is greedy.
        temperature: f32,
        /// Nucleus mass; 1 is off.
        top_p: f32,
        /// Candidates kept; 0 is off.
        top_k: i32,
    }
}

row! {
    /// A row of `sequences`. The three lists have one length.
    SequenceRow = "sequences", version 1, grain ["task_id", "sample", "sequence_index"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// 0-based, by the trajectory's structure.
        sequence_index: i32,
        /// `actor` or `rehearsal`.
        role: String,
        /// Token ids, exactly as given and sampled.
        token_ids: Vec<u32>,
        /// Whether the policy sampled the token.
        loss_mask: Vec<bool>,
        /// Natural log of the token's probability when it was sampled, at the sampling temperature, before
        /// top-p and top-k. NULL: the token was given.
        sampling_logprobs: Vec<Option<f32>>,
    }
}
