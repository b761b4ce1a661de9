-- advantages: group-relative advantage of every generation; one baseline per pool of a task, a role or both.
--
-- grain   one row per (task_id, sample, generation_index)
-- reads   generations, rewards (same trajectories; reward NULL = ungraded)
-- params  $grouping           'role': each role of a task is compared with itself; 'task': both with one another
--         $weighting          'generation': each generation has one vote in the baseline, so long trajectories
--                             weigh more; 'trajectory': each trajectory has one, the mean reward of its
--                             generations of the pool, rounded to a billionth
--         $baseline           'mean' of all members; 'leave_one_out': of those of the other trajectories;
--                             'zero': none
--         $scale              BOOLEAN: divide by the deviation, or only center
--         $epsilon            DOUBLE: added to that deviation, in reward units
--         $singleton          'zero', 'exclude', 'raw': for a generation with nothing to be compared with, the
--                             advantage is 0, or it is excluded, or the advantage is its reward
--         $zero_variance      'keep', 'exclude': what becomes of a (group, role) of equal rewards
--         $malfunction        'reward': rehearsal output that broke its format has a reward of its own;
--                             'exclude': it is excluded; 'trajectory': it has its trajectory's reward
--         $malfunction_reward DECIMAL(18, 9): that reward of its own
--         $blank_penalty      DECIMAL(18, 9): taken from the reward of a generation without visible text
--         $rehearsal_weight   DOUBLE: what advantages of the rehearsal role are multiplied with at the end
-- source  DeepSeekMath 4.1.2, arxiv.org/abs/2402.03300; without deviation, 2503.20783; one baseline per role,
--         2602.08847; leave-one-out, RLOO, 2402.14740
--
-- Rewards are summed as whole billionths, so no sum depends on how rows are ordered or partitioned, and each
-- result is one division of exact numbers: with n members of sum S, the baseline is S / n and the centered
-- reward (n r - S) / n. The deviation is the sample one (n - 1) over all members, the own trajectory included
-- even with leave-one-out; a deviation of 0 divides nothing.
--
-- A generation beyond the gated prefix, without tokens, or ungraded is no member, and says why.

WITH shaped AS (
    SELECT
        g.task_id, g.sample, g.generation_index, g.role,
        CASE
            WHEN g.role = 'rehearsal' AND g.error_code IS NOT NULL AND $malfunction = 'reward'
                THEN CAST($malfunction_reward AS DECIMAL(18, 9))
            WHEN g.is_blank THEN CAST(r.reward - CAST($blank_penalty AS DECIMAL(18, 9)) AS DECIMAL(18, 9))
            ELSE r.reward
        END AS reward,
        CASE
            WHEN g.user_turn >= r.n_kept_user_turns THEN 'beyond_gate'
            WHEN g.n_tokens = 0 THEN 'no_tokens'
            WHEN g.role = 'rehearsal' AND g.error_code IS NOT NULL AND $malfunction = 'exclude' THEN 'malfunction'
        END AS exclusion_reason
    FROM generations AS g
    LEFT JOIN rewards AS r ON r.task_id = g.task_id AND r.sample = g.sample AND r.role = g.role
),

scored AS (
    SELECT
        task_id, sample, generation_index, role, reward,
        CASE WHEN $grouping = 'task' THEN 'all' ELSE role END AS pool,
        -- Billionths.
        CAST(reward * 1000000000 AS DECIMAL(38, 0)) AS units,
        coalesce(exclusion_reason, CASE WHEN reward IS NULL THEN 'ungraded' END) AS exclusion_reason
    FROM shaped
),

trajectory_sums AS (
    SELECT
        task_id, pool, sample,
        count(*) AS n,
        sum(units) AS units,
        -- Squares of large rewards may not fit, so they are taken only where they are needed.
        sum(CASE WHEN $scale THEN units * units ELSE 0 END) AS squares,
        min(units) AS least,
        max(units) AS most
    FROM scored
    WHERE exclusion_reason IS NULL
    GROUP BY task_id, pool, sample
),

trajectory_means AS (
    SELECT
        task_id, pool, sample, n, units, squares, least, most,
        -- Rounded half away from zero: what is left of the division is taken off before it.
        2 * units + CASE WHEN units < 0 THEN -n ELSE n END AS twice,
        2 * n AS parts
    FROM trajectory_sums
),

-- What each trajectory brings to the baseline: its generations, or itself.
votes AS (
    SELECT
        task_id, pool, sample, least, most,
        CASE WHEN $weighting = 'trajectory' THEN 1 ELSE n END AS n,
        CASE
            WHEN $weighting = 'trajectory' THEN CAST((twice - twice % parts) / parts AS DECIMAL(38, 0))
            ELSE units
        END AS units,
        squares
    FROM trajectory_means
),

groups AS (
    SELECT
        task_id, pool,
        sum(n) AS n,
        sum(units) AS units,
        sum(CASE WHEN NOT $scale THEN 0 WHEN $weighting = 'trajectory' THEN units * units ELSE squares END)
            AS squares,
        min(least) AS least,
        max(most) AS most
    FROM votes
    GROUP BY task_id, pool
),

compared AS (
    SELECT
        s.task_id, s.sample, s.generation_index, s.role, s.reward, s.units, s.exclusion_reason,
        g.least = g.most AS is_constant,
        -- The members compared with, and their sum.
        coalesce(g.n, 0) - CASE WHEN $baseline = 'leave_one_out' THEN coalesce(own.n, 0) ELSE 0 END AS n,
        g.units - CASE WHEN $baseline = 'leave_one_out' THEN coalesce(own.units, 0) ELSE 0 END AS sum_units,
        CASE
            WHEN $scale AND g.n > 1 THEN
                sqrt(
                    CAST(g.n * g.squares - g.units * g.units AS DOUBLE) / CAST(g.n * (g.n - 1) AS DOUBLE)
                ) / CAST(1000000000 AS DOUBLE)
        END AS deviation
    FROM scored AS s
    LEFT JOIN groups AS g ON g.task_id = s.task_id AND g.pool = s.pool
    LEFT JOIN (SELECT * FROM votes WHERE $baseline = 'leave_one_out') AS own
        ON own.task_id = s.task_id AND own.pool = s.pool AND own.sample = s.sample
),

ruled AS (
    SELECT
        task_id, sample, generation_index, role, reward, units, n, sum_units, deviation,
        exclusion_reason IS NULL
            AND n = CASE $baseline WHEN 'leave_one_out' THEN 0 WHEN 'mean' THEN 1 ELSE -1 END AS is_singleton,
        CASE
            WHEN exclusion_reason IS NOT NULL THEN exclusion_reason
            WHEN n = CASE $baseline WHEN 'leave_one_out' THEN 0 WHEN 'mean' THEN 1 ELSE -1 END
                THEN CASE WHEN $singleton = 'exclude' THEN 'singleton' END
            WHEN $zero_variance = 'exclude' AND is_constant THEN 'zero_variance'
        END AS exclusion_reason
    FROM compared
),

centered AS (
    SELECT
        task_id, sample, generation_index, role, reward, n, exclusion_reason,
        CASE
            WHEN exclusion_reason IS NULL AND NOT is_singleton AND $baseline <> 'zero'
                THEN CAST(sum_units AS DOUBLE) / CAST(n * 1000000000 AS DOUBLE)
        END AS baseline,
        CASE
            WHEN exclusion_reason IS NULL AND NOT is_singleton AND deviation > 0.0
                THEN deviation + CAST($epsilon AS DOUBLE)
        END AS deviation,
        CASE
            WHEN exclusion_reason IS NOT NULL THEN NULL
            WHEN is_singleton AND $singleton <> 'raw' THEN CAST(0 AS DOUBLE)
            WHEN is_singleton OR $baseline = 'zero'
                THEN CAST(units AS DOUBLE) / CAST(1000000000 AS DOUBLE)
            ELSE CAST(units * n - sum_units AS DOUBLE) / CAST(n * 1000000000 AS DOUBLE)
        END AS difference
    FROM ruled
)

SELECT
    task_id, sample, generation_index, role, reward, baseline, deviation,
    n AS group_size,
    CASE WHEN deviation IS NULL THEN difference ELSE difference / deviation END
        * CASE WHEN role = 'rehearsal' THEN CAST($rehearsal_weight AS DOUBLE) ELSE CAST(1 AS DOUBLE) END
        AS advantage,
    exclusion_reason IS NULL AS is_included,
    exclusion_reason
FROM centered
ORDER BY task_id, sample, generation_index
