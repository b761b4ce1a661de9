-- evaluations: scores of a checkpoint on each split, for each family of tasks and for all of them.
--
-- grain   one row per (suite, split, family); family 'all' holds every task of the split
-- reads   trajectories, generations, rewards (the actor's)
-- params  $suite       name of the collection of tasks
--         $checkpoint  digest of the weights that acted
-- source  standard error over tasks, not over trials: arxiv.org/abs/2411.00640, section 2.2
--
-- A task of no family counts under 'all' only. Turns are those of the gated prefix. The success of a task is
-- the share of its graded trials that succeeded, rounded to a billionth; the standard error is the sample
-- deviation (n - 1) of that over the n tasks with a graded trial, over sqrt(n). Sums are exact.

WITH turns AS (
    SELECT g.task_id, g.sample, count(*) AS n_turns
    FROM generations AS g
    LEFT JOIN rewards AS r ON r.task_id = g.task_id AND r.sample = g.sample AND r.role = 'actor'
    WHERE g.role = 'actor' AND (r.n_kept_user_turns IS NULL OR g.user_turn < r.n_kept_user_turns)
    GROUP BY g.task_id, g.sample
),

trials AS (
    SELECT
        t.split, t.family, t.environment, t.task_id, r.is_success,
        CAST(r.reward * 1000000000 AS DECIMAL(38, 0)) AS reward,
        coalesce(n.n_turns, 0) AS n_turns
    FROM trajectories AS t
    LEFT JOIN rewards AS r ON r.task_id = t.task_id AND r.sample = t.sample AND r.role = 'actor'
    LEFT JOIN turns AS n ON n.task_id = t.task_id AND n.sample = t.sample
),

-- Every trial once under its family and once under 'all'.
counted AS (
    SELECT split, family, environment, task_id, is_success, reward, n_turns
    FROM trials
    WHERE family IS NOT NULL
    UNION ALL
    SELECT split, 'all' AS family, environment, task_id, is_success, reward, n_turns
    FROM trials
),

task_sums AS (
    SELECT
        split, family, task_id,
        min(environment) AS environment,
        count(*) AS n_trials,
        count(is_success) AS n_graded,
        sum(CASE WHEN is_success THEN 1 ELSE 0 END) AS n_successes,
        count(reward) AS n_rewards,
        sum(reward) AS reward,
        sum(n_turns) AS n_turns
    FROM counted
    GROUP BY split, family, task_id
),

task_scores AS (
    SELECT
        split, family, environment, n_trials, n_graded, n_successes, n_rewards, reward, n_turns,
        -- Billionths, rounded half up; whole numbers divide to a whole number.
        CASE WHEN n_graded > 0 THEN CAST((2000000000 * n_successes + n_graded) / (2 * n_graded) AS DECIMAL(38, 0))
        END AS success
    FROM task_sums
),

families AS (
    SELECT
        split, family,
        min(environment) AS environment,
        count(*) AS n_tasks,
        max(n_trials) AS n_trials,
        sum(n_trials) AS n_trajectories,
        sum(n_graded) AS n_graded,
        sum(n_successes) AS n_successes,
        sum(n_rewards) AS n_rewards,
        sum(reward) AS reward,
        sum(n_turns) AS n_turns,
        count(success) AS n_scored_tasks,
        sum(success) AS success,
        sum(success * success) AS squares
    FROM task_scores
    GROUP BY split, family
)

SELECT
    $suite AS suite, split, family, environment,
    $checkpoint AS checkpoint,
    n_tasks, n_trials, n_graded,
    CASE WHEN n_graded > 0 THEN CAST(n_successes AS DOUBLE) / CAST(n_graded AS DOUBLE) END AS success_rate,
    CASE
        WHEN n_scored_tasks > 1 THEN
            sqrt(
                CAST(n_scored_tasks * squares - success * success AS DOUBLE)
                / CAST(n_scored_tasks * n_scored_tasks * (n_scored_tasks - 1) AS DOUBLE)
            ) / CAST(1000000000 AS DOUBLE)
    END AS standard_error,
    CASE WHEN n_rewards > 0 THEN CAST(reward AS DOUBLE) / CAST(n_rewards * 1000000000 AS DOUBLE) END
        AS reward_mean,
    CASE WHEN n_trajectories > 0 THEN CAST(n_turns AS DOUBLE) / CAST(n_trajectories AS DOUBLE) END AS turns_mean
FROM families
ORDER BY split, family
