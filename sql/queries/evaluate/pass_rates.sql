-- pass_rates: how likely k trials of a task are to pass, once or always, for each k up to the number of trials.
--
-- grain   one row per (suite, split, family, k); family 'all' holds every task of the split
-- reads   trajectories, rewards (the actor's; is_success NULL = not a valid trial)
-- params  $suite       name of the collection of tasks
--         $checkpoint  digest of the weights that acted
-- source  pass@k, unbiased: arxiv.org/abs/2107.03374, eq. 1; pass^k: arxiv.org/abs/2406.12045, section 3.1
--
-- Of a task with n valid trials, c of them passed, k drawn without putting back hold at least one that passed with
-- the chance 1 - (n-c)(n-c-1).../n(n-1)..., k factors each, and only such with c(c-1).../n(n-1).... Both are NULL
-- below k valid trials: such a task is left out of the mean, and n_scored_tasks says how many are not.
-- Chances are rounded to a billionth, so that their sum is exact.

WITH RECURSIVE trials AS (
    SELECT t.split, t.family, t.task_id, r.is_success
    FROM trajectories AS t
    LEFT JOIN rewards AS r ON r.task_id = t.task_id AND r.sample = t.sample AND r.role = 'actor'
),

-- Every trial once under its family and once under 'all'.
counted AS (
    SELECT split, family, task_id, is_success
    FROM trials
    WHERE family IS NOT NULL
    UNION ALL
    SELECT split, 'all' AS family, task_id, is_success
    FROM trials
),

task_sums AS (
    SELECT
        split, family, task_id,
        count(*) AS n_trials,
        count(is_success) AS n_graded,
        sum(CASE WHEN is_success THEN 1 ELSE 0 END) AS n_successes
    FROM counted
    GROUP BY split, family, task_id
),

outcomes AS (
    SELECT DISTINCT n_graded, n_successes
    FROM task_sums
    WHERE n_graded > 0
),

chances AS (
    SELECT
        n_graded, n_successes,
        CAST(1 AS BIGINT) AS k,
        CAST(n_successes AS DOUBLE) / CAST(n_graded AS DOUBLE) AS all_pass,
        CAST(n_graded - n_successes AS DOUBLE) / CAST(n_graded AS DOUBLE) AS none_passes
    FROM outcomes
    UNION ALL
    SELECT
        n_graded, n_successes,
        k + 1 AS k,
        all_pass * CAST(CASE WHEN n_successes > k THEN n_successes - k ELSE 0 END AS DOUBLE)
        / CAST(n_graded - k AS DOUBLE) AS all_pass,
        none_passes
        * CAST(CASE WHEN n_graded - n_successes > k THEN n_graded - n_successes - k ELSE 0 END AS DOUBLE)
        / CAST(n_graded - k AS DOUBLE) AS none_passes
    FROM chances
    WHERE k < n_graded
),

ks AS (
    SELECT DISTINCT split, family, unnest(range(1, n_trials + 1)) AS k
    FROM task_sums
),

sums AS (
    SELECT
        s.split, s.family, s.k,
        count(*) AS n_tasks,
        count(c.k) AS n_scored_tasks,
        sum(CAST(round((1.0 - c.none_passes) * 1000000000.0) AS BIGINT)) AS any_passes,
        sum(CAST(round(c.all_pass * 1000000000.0) AS BIGINT)) AS all_pass,
        sum(
            CASE
                WHEN c.k IS NOT NULL
                    THEN CAST(
                        round(CAST(t.n_successes AS DOUBLE) / CAST(t.n_graded AS DOUBLE) * 1000000000.0) AS BIGINT
                    )
            END
        ) AS passes
    FROM ks AS s
    INNER JOIN task_sums AS t ON t.split = s.split AND t.family = s.family
    LEFT JOIN chances AS c ON c.n_graded = t.n_graded AND c.n_successes = t.n_successes AND c.k = s.k
    GROUP BY s.split, s.family, s.k
)

SELECT
    $suite AS suite, split, family, k,
    $checkpoint AS checkpoint,
    n_tasks, n_scored_tasks,
    CASE WHEN n_scored_tasks > 0 THEN CAST(any_passes AS DOUBLE) / CAST(n_scored_tasks * 1000000000 AS DOUBLE) END
        AS pass_at_k,
    CASE WHEN n_scored_tasks > 0 THEN CAST(all_pass AS DOUBLE) / CAST(n_scored_tasks * 1000000000 AS DOUBLE) END
        AS pass_hat_k,
    CASE WHEN n_scored_tasks > 0 THEN CAST(passes AS DOUBLE) / CAST(n_scored_tasks * 1000000000 AS DOUBLE) END
        AS success_mean
FROM sums
ORDER BY split, family, k
