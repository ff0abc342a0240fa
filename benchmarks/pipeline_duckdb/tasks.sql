-- tasks, one row each: ordinary ones by one grouping; the few others by a fold over their events in order.

CREATE TEMP TABLE task_groups AS
WITH told AS (
    SELECT ref, coalesce(service, '') AS method, kind, epoch_us("at") AS at_us, identity, data, code, state,
        CASE WHEN attempt >= 0 THEN attempt END AS number, closes_attempt(kind, state, attempt, identity, code) AS closes,
        coalesce(micros(seconds), 0) AS run_us, micros(waited) AS waited_us
    FROM events
    WHERE kind IN ('task.submitted', 'task.attempt_ended', 'task.completed', 'task.reopened') AND ref IS NOT NULL
        AND (kind <> 'task.completed' OR coalesce(state IN ('finished', 'failed', 'cancelled'), false))
)
SELECT ref, method,
    count(*) FILTER (kind = 'task.submitted') AS opened, count(*) FILTER (kind = 'task.completed') AS completed,
    count(*) FILTER (kind = 'task.reopened') AS reopened, count(*) FILTER (kind = 'task.attempt_ended') AS tried,
    max(at_us) FILTER (kind = 'task.submitted') AS start_us, max(identity) FILTER (kind = 'task.submitted') AS client,
    any_value(data) FILTER (kind = 'task.submitted') AS said,
    max(at_us) FILTER (kind = 'task.completed') AS ended_us, max(identity) FILTER (kind = 'task.completed') AS node,
    max(code) FILTER (kind = 'task.completed') AS code, max(state) FILTER (kind = 'task.completed') AS outcome,
    max(run_us) FILTER (kind = 'task.completed' AND closes) AS run_us, max(number) AS attempts,
    min(at_us) FILTER (kind = 'task.attempt_ended') AS tried_first_us,
    max(at_us) FILTER (kind = 'task.attempt_ended') AS tried_last_us,
    sum(run_us) FILTER (kind = 'task.attempt_ended') AS wasted_us,
    count(*) FILTER (closes AND coalesce(number, 1) = 1) AS firsts,
    max(at_us - run_us) FILTER (closes AND coalesce(number, 1) = 1) AS first_us,
    max(waited_us) FILTER (closes AND coalesce(number, 1) = 1) AS wait_us,
    opened <= 1 AND completed <= 1 AND firsts <= 1 AND reopened = 0 AND opened + completed >= 1
        AND (opened = 0 OR coalesce(hour_of(start_us) <= hour_of(ended_us), true))
        AND (tried = 0 OR opened = 1 AND hour_of(tried_first_us) >= hour_of(start_us)
             AND coalesce(ended_us >= tried_last_us, true)) AS ordinary
FROM told GROUP BY ref, method;

-- Which row of its task an event belongs to. A submission opens a row unless one is open or ended just now; a reopening
-- unless one is open; a completion closes it, or stands alone; then the end is known until its hour is over.
CREATE TEMP TABLE task_rows_odd AS
WITH told AS (
    SELECT ref, coalesce(service, '') AS method, kind, epoch_us("at") AS at_us, identity, data, code, state, source,
        boot, seq, CASE WHEN attempt >= 0 THEN attempt END AS number, closes_attempt(kind, state, attempt, identity, code) AS closes,
        coalesce(micros(seconds), 0) AS run_us, micros(waited) AS waited_us
    FROM events
    WHERE kind IN ('task.submitted', 'task.attempt_ended', 'task.completed', 'task.reopened')
        AND (kind <> 'task.completed' OR coalesce(state IN ('finished', 'failed', 'cancelled'), false))
), mine AS (
    SELECT told.*, row_number() OVER (PARTITION BY ref, method ORDER BY hour_of(at_us), kind <> 'task.submitted', at_us,
        kind <> 'task.attempt_ended', source, boot, seq) AS place
    FROM told SEMI JOIN (FROM task_groups WHERE NOT ordinary) USING (ref, method)
), listed AS (
    SELECT ref, method, list({'kind': kind, 'hour': hour_of(at_us)} ORDER BY place) AS events
    FROM mine GROUP BY ref, method
), walked AS (
    SELECT ref, method, list_reduce(events, lambda was, one: {
        'phase': CASE
            WHEN one.kind = 'task.submitted' AND (one.hour > was.until OR was.phase = 0)
                OR one.kind = 'task.reopened' AND (one.hour > was.until OR was.phase <> 1) THEN 1
            WHEN one.kind = 'task.completed' THEN 2 ELSE was.phase END,
        'until': CASE
            WHEN one.kind = 'task.submitted' AND (one.hour > was.until OR was.phase = 0)
                OR one.kind = 'task.reopened' AND (one.hour > was.until OR was.phase <> 1) THEN 1_073_741_824
            WHEN one.kind = 'task.completed' AND (one.hour > was.until OR was.phase = 0) THEN one.hour + 1
            WHEN one.kind = 'task.completed' AND was.phase = 1 THEN one.hour ELSE was.until END,
        'last': was.last + (
            one.kind = 'task.submitted' AND (one.hour > was.until OR was.phase = 0)
            OR one.kind = 'task.reopened' AND (one.hour > was.until OR was.phase <> 1)
            OR one.kind = 'task.completed' AND (one.hour > was.until OR was.phase = 0))::BIGINT,
        'path': list_append(was.path, CASE
            WHEN one.kind = 'task.submitted' AND (one.hour > was.until OR was.phase = 0)
                OR one.kind = 'task.reopened' AND (one.hour > was.until OR was.phase <> 1)
                OR one.kind = 'task.completed' AND (one.hour > was.until OR was.phase = 0) THEN was.last + 1
            WHEN one.kind IN ('task.attempt_ended', 'task.completed') AND one.hour <= was.until AND was.phase = 1
                THEN was.last
            ELSE 0 END)
    }, {'phase': 0, 'until': 0::BIGINT, 'last': 0::BIGINT, 'path': []::BIGINT[]}).path AS path
    FROM listed
), placed AS (
    SELECT mine.*, walked.path[mine.place] AS row_no FROM mine JOIN walked USING (ref, method)
), based AS (
    SELECT *, first_value(kind) OVER so_far = 'task.reopened' AS again,
        first_value(CASE WHEN closes THEN coalesce(number, 1) - 1 END IGNORE NULLS) OVER so_far AS base
    FROM placed WHERE row_no > 0
    WINDOW so_far AS (PARTITION BY ref, method, row_no ORDER BY place)
)
SELECT ref, method, row_no,
    any_value(at_us) FILTER (kind IN ('task.submitted', 'task.reopened')) AS start_us,
    any_value(identity) FILTER (kind IN ('task.submitted', 'task.reopened')) AS client,
    any_value(data) FILTER (kind = 'task.submitted') AS said,
    greatest(max(CASE WHEN again THEN CASE WHEN closes THEN number - base END ELSE number END), 0) AS attempts,
    any_value(at_us) FILTER (kind = 'task.completed') AS ended_us,
    any_value(identity) FILTER (kind = 'task.completed') AS node,
    any_value(code) FILTER (kind = 'task.completed') AS code,
    any_value(state) FILTER (kind = 'task.completed') AS outcome,
    any_value(run_us) FILTER (kind = 'task.completed' AND closes) AS run_us,
    coalesce(sum(run_us) FILTER (kind = 'task.attempt_ended'), 0) AS wasted_us,
    arg_min({'first_us': at_us - run_us, 'wait_us': waited_us}, place)
        FILTER (closes AND (again OR coalesce(number, 1) = 1)) AS hand_out
FROM based GROUP BY ref, method, row_no;

CREATE TEMP VIEW tasks AS
WITH whole AS (
    SELECT ref, method, start_us, client, said, coalesce(greatest(attempts, 0), 0) AS attempts, ended_us, node, code,
        outcome, run_us, coalesce(wasted_us, 0) AS wasted_us, first_us, wait_us
    FROM task_groups WHERE ordinary
    UNION ALL
    SELECT ref, method, start_us, client, said, coalesce(attempts, 0), ended_us, node, code, outcome, run_us, wasted_us,
        hand_out.first_us, hand_out.wait_us
    FROM task_rows_odd
)
SELECT ref, make_timestamp(start_us) AS submitted, client, method, json_extract_string(said, '$.group') AS "group",
    TRY_CAST(json_extract_string(said, '$.priority') AS INTEGER) AS priority, make_timestamp(first_us) AS first_assigned,
    make_timestamp(ended_us) AS ended, coalesce(outcome, 'open') AS outcome, attempts, node, code,
    wait_us / 1e6 AS wait_seconds,
    CASE WHEN first_us IS NOT NULL AND start_us IS NOT NULL
        THEN greatest(0, first_us - start_us - coalesce(wait_us, 0)) / 1e6 END AS delay_seconds,
    run_us / 1e6 AS run_seconds, wasted_us::BIGINT / 1e6 AS wasted_seconds
FROM whole;
