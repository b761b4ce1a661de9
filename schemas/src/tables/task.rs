use super::declare::row;

row! {
    /// A row of `tasks`. Columns named as JSON hold JSON text, byte for byte as it came.
    TaskRow = "tasks", version 1, grain ["task_id"] {
        /// Name of the task, unique in its set.
        task_id: String,
        /// Part of the set it belongs to, such as `train`, `held_out`, `drift`.
        split: String,
        /// Kind of task, for grouping scores. NULL: the source states none.
        family: Option<String>,
        /// Where it came from, such as `world:7` or `bfcl:multi_turn_base`.
        source: String,
        /// JSON list of messages, up to and including the first user message: the initial context.
        opening: String,
        /// JSON list of function schemas, as the chat template gets them.
        tools: String,
        /// JSON list of strings: the scripted user messages after the first.
        later_user_turns: String,
        /// JSON list of `{user_turn, name, arguments, result}`: calls of the recorded dialogue.
        recorded_calls: String,
        /// JSON list of messages: the whole recorded dialogue. NULL: none was recorded.
        transcript: Option<String>,
        /// JSON list of grader declarations.
        graders: String,
        /// JSON list of checklist variants, each a list over user turns of lists of items. NULL: none.
        checklist: Option<String>,
        /// JSON of what an executable world needs to run and check the task. NULL: it has no such world.
        world: Option<String>,
        /// Hex digest of the columns above: the task's coordinate in every random draw.
        task_hash: String,
    }
}
