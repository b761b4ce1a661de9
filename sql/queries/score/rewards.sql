-- rewards: the reward of every trajectory for each role that spoke in it, and whether it succeeded.
--
-- grain   one row per (task_id, sample, role): 'actor' always, 'rehearsal' where it wrote anything
-- reads   trajectories, verdicts (one row per item of the task, is_passed NULL = could not be graded)
-- params  $on_ungraded          'null': an ungraded item leaves the trajectory without a reward; 'skip': it is
--                               left out of its user turn, unless the gate hangs on it
--         $on_rehearsal_failed  'null': a trajectory cut off because the rehearsal role failed twice has no
--                               reward, for it is not the actor's fault; 'score': it counts as far as it came,
--                               and what could not be graded for that reason has failed
--         $on_overlong          'null': a trajectory cut off at a limit (length, turns or outputs) has no
--                               reward; 'score': it counts as far as it came
--         $rehearsal_checklist_weight  what share of the rehearsal role's reward is that of its own checklist: the
--                               weight of its passed items over that of all, in the user turns kept; the rest is
--                               the trajectory's. A trajectory without such items has the trajectory's alone
-- source  reward of a checklist, CM2, arxiv.org/abs/2602.12268, over scripted user turns; no reward for the
--         overlong: DAPO, arxiv.org/abs/2503.14476, section 3.4
--
-- The gated prefix: after the first user turn with a required item that did not pass (failed or ungraded) all
-- later user turns are dropped, their items with them.
--
-- A user turn scores the weight of its passed items over the weight of its items; the reward is the sum of the
-- user turns kept over the number of user turns the task has, so one that was never reached counts 0. Each of
-- the two divisions is rounded half away from zero to a billionth; the first is exact where weights sum to 1.
--
-- Success: in every scripted user turn all required items passed, or all items where none is required.

WITH items AS (
    SELECT
        v.task_id, v.sample, v.user_turn, v.weight, v.is_required,
        CASE
            WHEN v.is_passed IS NULL AND t.end_reason = 'rehearsal_failed' AND $on_rehearsal_failed = 'score'
                AND v.user_turn >= t.n_user_turns - 1 THEN FALSE
            ELSE v.is_passed
        END AS is_passed
    FROM verdicts AS v
    INNER JOIN trajectories AS t ON t.task_id = v.task_id AND t.sample = v.sample
    WHERE v.grader <> 'rehearsal_checklist'
),

gates AS (
    SELECT task_id, sample, min(user_turn) AS gate
    FROM items
    WHERE is_required AND is_passed IS NOT TRUE
    GROUP BY task_id, sample
),

user_turns AS (
    SELECT
        v.task_id, v.sample, v.user_turn,
        count(*) AS n_items,
        count(v.is_passed) AS n_graded,
        -- Billionths.
        sum(CASE WHEN v.is_passed IS NULL THEN 0 ELSE CAST(v.weight * 1000000000 AS DECIMAL(38, 0)) END)
            AS weight,
        sum(CASE WHEN v.is_passed THEN CAST(v.weight * 1000000000 AS DECIMAL(38, 0)) ELSE 0 END) AS passed,
        sum(CASE WHEN v.is_required THEN 1 ELSE 0 END) AS n_required,
        sum(CASE WHEN v.is_required AND NOT v.is_passed THEN 1 ELSE 0 END) AS n_required_failed,
        sum(CASE WHEN v.is_required AND v.is_passed IS NULL THEN 1 ELSE 0 END) AS n_required_ungraded,
        sum(CASE WHEN NOT v.is_passed THEN 1 ELSE 0 END) AS n_failed,
        sum(CASE WHEN v.is_passed IS NULL THEN 1 ELSE 0 END) AS n_ungraded
    FROM items AS v
    LEFT JOIN gates AS g ON g.task_id = v.task_id AND g.sample = v.sample
    WHERE g.gate IS NULL OR v.user_turn <= g.gate
    GROUP BY v.task_id, v.sample, v.user_turn
),

user_turn_scores AS (
    SELECT
        task_id, sample, user_turn, n_items, n_graded, n_required_failed, n_required_ungraded,
        CASE WHEN n_required > 0 THEN n_required_failed ELSE n_failed END AS n_deciding_failed,
        CASE WHEN n_required > 0 THEN n_required_ungraded ELSE n_ungraded END AS n_deciding_ungraded,
        -- What is left of the division is taken off before it, so that it is exact.
        CASE
            WHEN weight > 0 THEN
                CAST(
                    (2000000000 * passed + weight - (2000000000 * passed + weight) % (2 * weight))
                    / (2 * weight) AS DECIMAL(38, 0)
                )
        END AS units
    FROM user_turns
),

rehearsal_items AS (
    SELECT
        v.task_id, v.sample,
        sum(CASE WHEN v.is_passed IS NULL THEN 1 ELSE 0 END) AS n_ungraded,
        sum(CASE WHEN v.is_passed IS NULL THEN 0 ELSE CAST(v.weight * 1000000000 AS DECIMAL(38, 0)) END)
            AS weight,
        sum(CASE WHEN v.is_passed THEN CAST(v.weight * 1000000000 AS DECIMAL(38, 0)) ELSE 0 END) AS passed
    FROM verdicts AS v
    LEFT JOIN gates AS g ON g.task_id = v.task_id AND g.sample = v.sample
    WHERE v.grader = 'rehearsal_checklist' AND (g.gate IS NULL OR v.user_turn <= g.gate)
    GROUP BY v.task_id, v.sample
),

rehearsal_scores AS (
    SELECT
        task_id, sample,
        CASE
            WHEN weight > 0 AND ($on_ungraded = 'skip' OR n_ungraded = 0) THEN
                CAST(
                    (2000000000 * passed + weight - (2000000000 * passed + weight) % (2 * weight))
                    / (2 * weight) AS DECIMAL(38, 0)
                )
        END AS own_units
    FROM rehearsal_items
),

prefixes AS (
    SELECT
        task_id, sample,
        sum(n_items) AS n_items,
        sum(n_graded) AS n_graded,
        sum(units) AS units,
        sum(CASE WHEN units IS NULL THEN 1 ELSE 0 END) AS n_weightless,
        sum(n_deciding_failed) AS n_deciding_failed,
        sum(n_deciding_ungraded) AS n_deciding_ungraded,
        -- User turns that drop the later ones only because an item is ungraded; at most the last one kept.
        max(CASE WHEN n_required_ungraded > 0 AND n_required_failed = 0 THEN user_turn END) AS doubtful_gate
    FROM user_turn_scores
    GROUP BY task_id, sample
),

trajectory_rewards AS (
    SELECT
        t.task_id, t.sample, t.n_rehearsals, t.n_user_turns, t.n_scripted_user_turns, t.end_reason,
        g.gate, p.n_deciding_failed, p.n_deciding_ungraded,
        coalesce(p.n_items, 0) AS n_items,
        coalesce(p.n_graded, 0) AS n_graded,
        CASE WHEN g.gate + 1 < t.n_user_turns THEN g.gate + 1 ELSE t.n_user_turns END AS n_kept_user_turns,
        2 * p.units + t.n_scripted_user_turns AS twice,
        2 * t.n_scripted_user_turns AS parts,
        CASE
            -- Unless the failure lies beyond the gate, where nothing counts.
            WHEN t.end_reason = 'rehearsal_failed' AND $on_rehearsal_failed = 'null'
                AND (g.gate IS NULL OR g.gate >= t.n_user_turns - 1) THEN 'rehearsal_failed'
            WHEN t.end_reason IN ('length', 'max_turns', 'max_generations') AND $on_overlong = 'null'
                AND (g.gate IS NULL OR g.gate >= t.n_user_turns - 1) THEN 'overlong'
            WHEN p.n_items IS NULL THEN 'no_items'
            WHEN $on_ungraded = 'null' AND p.n_graded < p.n_items THEN 'ungraded_item'
            WHEN p.doubtful_gate < t.n_scripted_user_turns - 1 THEN 'ungraded_gate'
            WHEN p.n_weightless > 0 THEN CASE WHEN p.n_graded < p.n_items THEN 'ungraded_item' ELSE 'no_weight' END
        END AS ungraded_reason
    FROM trajectories AS t
    LEFT JOIN gates AS g ON g.task_id = t.task_id AND g.sample = t.sample
    LEFT JOIN prefixes AS p ON p.task_id = t.task_id AND p.sample = t.sample
),

scored AS (
    SELECT
        task_id, sample, n_rehearsals, n_items, n_graded, n_kept_user_turns, n_scripted_user_turns,
        ungraded_reason,
        CASE WHEN ungraded_reason IS NULL THEN CAST((twice - twice % parts) / parts AS DECIMAL(38, 0)) END
            AS units,
        CASE
            WHEN ungraded_reason = 'rehearsal_failed' THEN NULL
            WHEN n_items = 0 THEN NULL
            WHEN n_deciding_failed > 0 THEN FALSE
            WHEN n_deciding_ungraded > 0 THEN NULL
            ELSE n_user_turns >= n_scripted_user_turns
        END AS is_success
    FROM trajectory_rewards
),

role_scores AS (
    SELECT
        s.task_id, s.sample, roles.role, s.is_success, s.n_graded, s.n_items, s.n_kept_user_turns,
        s.n_scripted_user_turns, s.ungraded_reason, s.units, o.own_units,
        roles.role = 'rehearsal' AND $rehearsal_checklist_weight > 0 AND o.task_id IS NOT NULL AS is_blended,
        -- Twice a billion times a billionth, and one for rounding half up.
        2 * (
            (1000000000 - CAST($rehearsal_checklist_weight * 1000000000 AS DECIMAL(38, 0))) * s.units
            + CAST($rehearsal_checklist_weight * 1000000000 AS DECIMAL(38, 0)) * o.own_units
        ) + 1000000000 AS blend
    FROM scored AS s
    CROSS JOIN (VALUES ('actor'), ('rehearsal')) AS roles (role)
    LEFT JOIN rehearsal_scores AS o ON o.task_id = s.task_id AND o.sample = s.sample
    WHERE roles.role = 'actor' OR s.n_rehearsals > 0
)

SELECT
    task_id, sample, role,
    CAST(
        CASE
            WHEN is_blended THEN CAST((blend - blend % 2000000000) / 2000000000 AS DECIMAL(38, 0))
            ELSE units
        END * CAST('0.000000001' AS DECIMAL(10, 9)) AS DECIMAL(18, 9)
    ) AS reward,
    CASE
        WHEN ungraded_reason IS NULL AND is_blended AND own_units IS NULL THEN 'ungraded_rehearsal_item'
        ELSE ungraded_reason
    END AS ungraded_reason,
    is_success, n_graded, n_items, n_kept_user_turns, n_scripted_user_turns
FROM role_scores
ORDER BY task_id, sample, role
