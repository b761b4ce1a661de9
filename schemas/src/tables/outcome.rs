use crate::Decimal;

use super::declare::row;

row! {
    /// A row of `verdicts`.
    VerdictRow = "verdicts", version 1, grain ["task_id", "sample", "user_turn", "grader", "item"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// 0-based user turn the item belongs to.
        user_turn: i32,
        /// Kind of grader.
        grader: String,
        /// The item, unique in its user turn.
        item: String,
        /// Whether it passed. NULL: it could not be graded.
        is_passed: Option<bool>,
        /// Why it failed or could not be graded. NULL: it passed.
        reason: Option<String>,
        /// Its share of the reward of its user turn.
        weight: Decimal,
        /// Whether later user turns count only if it passed.
        is_required: bool,
        /// The first judge call it rests on; `judge_calls` has all of the item. NULL: no judge was asked.
        request_hash: Option<String>,
    }
}

row! {
    /// A row of `judge_calls`.
    JudgeCallRow = "judge_calls", version 2,
        grain ["task_id", "sample", "user_turn", "grader", "item", "turn", "vote", "try_index"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// 0-based user turn asked about.
        user_turn: i32,
        /// `checklist`, or `rehearsal_checklist` for an item about the imagined responses.
        grader: String,
        /// The item, unique in its user turn and grader.
        item: String,
        /// 0-based turn after which the transcript was cut for the judge; -1 if the user turn has none.
        turn: i32,
        /// 0-based, of `score.judge.votes`.
        vote: i32,
        /// 0-based: one more for every answer that could not be read, and for every refresh.
        try_index: i32,
        /// Hex digest of model, prompt, schema, sampling settings and vote: what is asked again word by word has it
        /// already.
        request_hash: String,
        /// The model asked.
        model: String,
        /// JSON text of the request.
        request: String,
        /// What the model wrote, or what came in its place. NULL: nothing came.
        response: Option<String>,
        /// The answer in it. NULL: there is none, and `error` says why.
        is_passed: Option<bool>,
        /// Tokens of the request. NULL: not reported.
        n_request_tokens: Option<i64>,
        /// Tokens of the response. NULL: not reported.
        n_response_tokens: Option<i64>,
        /// What went wrong. NULL: nothing.
        error: Option<String>,
    }
}

row! {
    /// A row of `rewards`.
    RewardRow = "rewards", version 1, grain ["task_id", "sample", "role"] {
        /// The task.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// `actor` or `rehearsal`.
        role: String,
        /// Score of the trajectory for this role. NULL: ungraded.
        reward: Option<Decimal>,
        /// Why it is NULL. NULL: it is not.
        ungraded_reason: Option<String>,
        /// Whether every item that gates a user turn passed, in all of them. NULL: not known.
        is_success: Option<bool>,
        /// Graded items over all items.
        n_graded: i64,
        /// Items of the gated prefix.
        n_items: i64,
        /// User turns in the gated prefix: what comes after a failed required item is dropped.
        n_kept_user_turns: i64,
        /// User turns the task has.
        n_scripted_user_turns: i64,
    }
}

row! {
    /// A row of `advantages`.
    AdvantageRow = "advantages", version 1, grain ["task_id", "sample", "generation_index"] {
        /// The task: with the role, the group a baseline belongs to.
        task_id: String,
        /// The trajectory within its group.
        sample: i32,
        /// The generation.
        generation_index: i32,
        /// `actor` or `rehearsal`.
        role: String,
        /// Reward with its penalties. NULL: ungraded.
        reward: Option<Decimal>,
        /// Mean reward it is compared with. NULL: there is none.
        baseline: Option<f64>,
        /// What was divided by: the deviation of the group, or of the whole step where that is whitened. NULL: nothing.
        deviation: Option<f64>,
        /// Members it is compared with: of its role, or of both where they are grouped by task.
        group_size: i64,
        /// Reward less baseline, scaled or whitened if asked for, times the weight of the role. NULL: excluded.
        advantage: Option<f64>,
        /// Whether an update trains on it.
        is_included: bool,
        /// Why not. NULL: it is included.
        exclusion_reason: Option<String>,
    }
}

row! {
    /// A row of `updates`.
    UpdateRow = "updates", version 2, grain ["epoch", "minibatch", "role"] {
        /// 0-based pass over the stage's sequences.
        epoch: i32,
        /// 0-based part of that pass.
        minibatch: i32,
        /// `actor`, `rehearsal`, or `all`.
        role: String,
        /// Optimizer applications before this one.
        optimizer_step: i64,
        /// Trained tokens.
        n_tokens: i64,
        /// Trained generations.
        n_generations: i64,
        /// Sequences that went through the model.
        n_sequences: i64,
        /// Tokens that went through the model: a prefix that sequences of one micro-batch share went through once, and
        /// counts for the first of them in the order of their tokens.
        n_forward_tokens: i64,
        /// Value of the objective's loss, unitless. NULL: the role has no trained token.
        loss: Option<f64>,
        /// Mean estimate of the divergence from the frozen reference over tokens of roles that are held to it, nats. NULL:
        /// there are none.
        kl_nats: Option<f64>,
        /// Mean entropy of the policy at trained positions, nats. NULL: not measured.
        entropy_nats: Option<f64>,
        /// Share of trained tokens whose ratio was clipped. NULL: the role has none.
        clip_share: Option<f64>,
        /// Mean weight of trained tokens in `update.correction`. NULL: there is no correction, or the role has no token.
        correction_mean: Option<f64>,
        /// Share of trained tokens that the correction left out. NULL: as above.
        masked_share: Option<f64>,
        /// Mean of `policy_logprob - sampling_logprob`, nats, as this optimizer application finds the policy: in the first one
        /// of a step (epoch 0, minibatch 0) the difference between sampler and trainer, later also what the applications
        /// before it have changed. With `update.correction` the policy is that of before the first one, in all of them.
        /// NULL: the role has no token.
        mismatch_mean_nats: Option<f64>,
        /// Largest absolute value of the same. NULL: the role has no token.
        mismatch_max_nats: Option<f64>,
        /// Mean k3 estimate of the same difference, nats: `exp(d) - 1 - d`. NULL: the role has no token.
        mismatch_k3_nats: Option<f64>,
        /// Mean advantage over trained generations. NULL: the role has none.
        advantage_mean: Option<f64>,
        /// Norm of the whole gradient before clipping; the same in each role's row. NULL: not finite.
        gradient_norm: Option<f64>,
        /// Learning rate applied.
        learning_rate: f64,
        /// Whether the optimizer left the weights alone because the norm was not finite.
        is_skipped: bool,
    }
}

row! {
    /// A row of `sft_losses`.
    SftLossRow = "sft_losses", version 1, grain ["optimizer_step", "role"] {
        /// Optimizer applications before this one in the whole run, skipped ones too.
        optimizer_step: i64,
        /// `actor`, `rehearsal`, or `all`.
        role: String,
        /// Trained tokens.
        n_tokens: i64,
        /// Sequences that went through the model.
        n_sequences: i64,
        /// Tokens that went through the model: a prefix that sequences of one micro-batch share went through once, and
        /// counts for the first of them in the order of their tokens.
        n_forward_tokens: i64,
        /// Mean negative log likelihood, nats per token. NULL: the role has no token here.
        loss_nats: Option<f64>,
        /// Norm of the whole gradient before clipping. NULL: not finite.
        gradient_norm: Option<f64>,
        /// Learning rate applied.
        learning_rate: f64,
        /// Whether the optimizer left the weights alone because the norm was not finite.
        is_skipped: bool,
    }
}

row! {
    /// A row of `evaluations`.
    EvaluationRow = "evaluations", version 1, grain ["suite", "split", "family"] {
        /// Collection of tasks.
        suite: String,
        /// Split within it.
        split: String,
        /// Kind of task, or `all`.
        family: String,
        /// What answered the calls.
        environment: String,
        /// Digest of the weights.
        checkpoint: String,
        /// Tasks.
        n_tasks: i64,
        /// Trials of each task.
        n_trials: i64,
        /// Trajectories that could be graded.
        n_graded: i64,
        /// Share of graded trajectories that succeeded. NULL: none could be graded.
        success_rate: Option<f64>,
        /// Standard error of that share over tasks. NULL: fewer than two tasks.
        standard_error: Option<f64>,
        /// Mean reward of graded trajectories. NULL: none.
        reward_mean: Option<f64>,
        /// Mean of turns per trajectory. NULL: no trajectory.
        turns_mean: Option<f64>,
    }
}

row! {
    /// A row of `pass_rates`.
    PassRateRow = "pass_rates", version 1, grain ["suite", "split", "family", "k"] {
        /// Collection of tasks.
        suite: String,
        /// Split within it.
        split: String,
        /// Kind of task, or `all`.
        family: String,
        /// Trials drawn.
        k: i64,
        /// Digest of the weights.
        checkpoint: String,
        /// Tasks.
        n_tasks: i64,
        /// Tasks with at least k valid trials: those the rates are means over.
        n_scored_tasks: i64,
        /// Chance that at least one of k trials passes. NULL: no task has k valid trials.
        pass_at_k: Option<f64>,
        /// Chance that all of k trials pass. NULL: no task has k valid trials.
        pass_hat_k: Option<f64>,
        /// Share of a task's valid trials that passed, over the same tasks. NULL: no task has k valid trials.
        success_mean: Option<f64>,
    }
}

row! {
    /// A row of `timings`.
    TimingRow = "timings", version 1, grain ["subject", "metric"] {
        /// What was measured, such as `engine` or `part-00003`.
        subject: String,
        /// Name with its unit as suffix, such as `wall_secs`.
        metric: String,
        /// The figure.
        value: f64,
    }
}
