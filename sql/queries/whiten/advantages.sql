-- advantages: those of a whole step, centered once more and divided by their deviation.
--
-- grain   one row per (task_id, sample, generation_index)
-- reads   advantages (of all parts of a step; what is not included has none, and stays so)
-- params  $grouping           'role': over the rows of each role; 'task': over those of both
--         $epsilon            DOUBLE: added to the deviation
--         $rehearsal_weight   DOUBLE: what advantages of the rehearsal role are multiplied with at the end
-- source  REINFORCE++, arxiv.org/abs/2501.03262
--
-- Advantages are rounded to a billionth and summed as whole billionths, so that no sum depends on how rows are
-- ordered or partitioned. With n rows of sum S a row u becomes (n u - S) / n over the sample deviation (n - 1) and
-- epsilon; a deviation of 0 divides nothing. The baseline stays that of the group.

WITH rounded AS (
    SELECT
        *,
        CASE WHEN $grouping = 'task' THEN 'all' ELSE role END AS pool,
        CASE WHEN is_included THEN CAST(round(advantage * CAST(1000000000 AS DOUBLE)) AS DECIMAL(38, 0)) END
            AS units
    FROM advantages
),

sums AS (
    SELECT
        pool,
        -- A count is too narrow to be multiplied with squares.
        CAST(count(units) AS DECIMAL(38, 0)) AS n,
        sum(units) AS units,
        sum(units * units) AS squares
    FROM rounded
    GROUP BY pool
),

centered AS (
    SELECT
        r.*,
        CAST(r.units * s.n - s.units AS DOUBLE) / CAST(s.n * 1000000000 AS DOUBLE) AS difference,
        CASE
            WHEN r.units IS NOT NULL AND s.n > 1 AND s.n * s.squares > s.units * s.units THEN
                sqrt(CAST(s.n * s.squares - s.units * s.units AS DOUBLE) / CAST(s.n * (s.n - 1) AS DOUBLE))
                / CAST(1000000000 AS DOUBLE) + CAST($epsilon AS DOUBLE)
        END AS step_deviation
    FROM rounded AS r
    INNER JOIN sums AS s ON s.pool = r.pool
)

SELECT
    task_id, sample, generation_index, role, reward, baseline,
    step_deviation AS deviation,
    group_size,
    CASE WHEN step_deviation IS NULL THEN difference ELSE difference / step_deviation END
        * CASE WHEN role = 'rehearsal' THEN CAST($rehearsal_weight AS DOUBLE) ELSE CAST(1 AS DOUBLE) END
        AS advantage,
    is_included,
    exclusion_reason
FROM centered
ORDER BY task_id, sample, generation_index
