-- check_states and the timeline of checks. One sort of all results; whatever is quiet then leaves, and the states are
-- worked out on what is left: results that are not ok, the 20 after such a one, gaps, and the last of every hour.

CREATE TEMP TABLE check_again AS
SELECT source, boot, seq FROM (
    SELECT source, boot, seq, row_number() OVER (
        PARTITION BY identity, ref, hour_of(epoch_us("at")) ORDER BY "at", source, boot, seq) AS nth
    FROM events
    WHERE kind = 'check.answered' AND ref <> '' AND identity <> '' AND service <> ''
        AND hash(identity, ref, hour_of(epoch_us("at"))) IN (FROM check_twice)
        AND json_extract(data, '$.scheduled') = 'true'
) WHERE nth > 1;

CREATE TEMP TABLE check_names AS
SELECT row_number() OVER ()::INTEGER AS check_no, agent, "check"
FROM (SELECT DISTINCT identity AS agent, service AS "check" FROM events
      WHERE kind = 'check.answered' AND identity <> '' AND service <> '');

-- A removal ends a life of a check; the next result begins another.
CREATE TEMP TABLE check_lives AS
SELECT identity AS agent, service AS "check", epoch_us("at") AS gone_us, source, boot, seq,
    row_number() OVER one AS life, lead(gone_us, 1, 4_611_686_018_427_387_904) OVER one AS until_us
FROM events WHERE kind = 'check.removed' AND identity <> '' AND service <> ''
WINDOW one AS (PARTITION BY identity, service ORDER BY "at", source, boot, seq);

CREATE TEMP TABLE check_rows AS
WITH answered AS (
    SELECT identity AS agent, service AS "check", epoch_us("at") AS at_us, source, boot, seq,
        CASE state WHEN 'ok' THEN 0 WHEN 'warning' THEN 1 WHEN 'critical' THEN 2 ELSE 3 END::TINYINT AS state,
        json_transform(data, '{"scheduled": "BOOLEAN", "interval": "DOUBLE", "timeout": "DOUBLE", "max_attempts": "INTEGER"}')
            AS said
    FROM events ANTI JOIN check_again USING (source, boot, seq)
    WHERE kind = 'check.answered' AND identity <> '' AND service <> ''
), results AS (
    SELECT check_no, coalesce(life, 0) AS life, gone_us, at_us, answered.source, answered.boot, answered.seq, state,
        at_us + CASE WHEN said.interval BETWEEN 0 AND 31622400 THEN
            ((said.interval + CASE WHEN said.timeout BETWEEN 0 AND 31622400 THEN said.timeout ELSE 0 END) * 1e6)::BIGINT
            ELSE 0 END AS vouched_us,
        CASE WHEN said.max_attempts >= 1 THEN said.max_attempts ELSE 1 END AS max_attempts
    FROM answered JOIN check_names USING (agent, "check")
        LEFT JOIN check_lives ON check_lives.agent = answered.agent AND check_lives."check" = answered."check"
            AND at_us >= gone_us AND at_us < check_lives.until_us
    WHERE said.scheduled
    UNION ALL
    SELECT check_no, life - 1, NULL, gone_us, source, boot, seq, NULL, NULL, NULL
    FROM check_lives JOIN check_names USING (agent, "check")
), placed AS (
    SELECT *, row_number() OVER one AS place, lag(state) OVER one AS was_state, lag(vouched_us) OVER one AS was_vouched_us,
        coalesce(lead(at_us) OVER one, horizon_us()) AS until_us,
        count_if(state <> 0) OVER (one ROWS BETWEEN 20 PRECEDING AND CURRENT ROW) AS troubles
    FROM results WINDOW one AS (PARTITION BY check_no, life ORDER BY at_us, source, boot, seq)
)
SELECT *, state IS NULL AS removed, coalesce(vouched_us < until_us, false) AS gap,
    state IS NOT NULL AND hour_of(until_us) > hour_of(at_us) AS crosses
FROM placed
WHERE CASE WHEN state IS NULL THEN was_state IS NOT NULL
    ELSE was_state IS NULL OR troubles > 0 OR was_vouched_us < at_us OR gap OR crosses END;

-- A change weighs 118 hundredths if it is the newest, 2 less for each result after it; 20 changes are weighed.
-- 5 * weight is hundredths of a percent: it flaps from above 3000 on, until it is at 2500 or below.
CREATE TEMP TABLE check_kept AS
WITH weighed AS (
    SELECT *, coalesce(state <> was_state, false) AS turned,
        sum(turned::INTEGER) OVER newest AS turns, sum(CASE WHEN turned THEN place ELSE 0 END) OVER newest AS turn_places,
        max(CASE WHEN state <> 0 AND coalesce(was_state, 0) = 0 THEN place END) OVER so_far AS trouble_place
    FROM check_rows
    WINDOW so_far AS (PARTITION BY check_no, life ORDER BY place),
        newest AS (PARTITION BY check_no, life ORDER BY place RANGE BETWEEN 19 PRECEDING AND CURRENT ROW)
), counted AS (
    SELECT *, CASE WHEN state <> 0 THEN place - trouble_place + 1 ELSE 0 END AS attempts,
        (118 * turns - 2 * (place * turns - turn_places))::BIGINT AS weight
    FROM weighed
), marked AS (
    SELECT *, state <> 0 AND coalesce(max(CASE WHEN state <> 0 AND attempts >= max_attempts THEN place END) OVER so_far
            >= trouble_place, false) AS problem,
        NOT removed AND coalesce(max(CASE WHEN weight * 5 > 3000 THEN place END) OVER so_far, 0)
            > coalesce(max(CASE WHEN weight * 5 <= 2500 THEN place END) OVER so_far, 0) AS flaps
    FROM counted WINDOW so_far AS (PARTITION BY check_no, life ORDER BY place)
), compared AS (
    SELECT *, NOT removed AND was_state IS NULL AS first,
        NOT removed AND (was_state IS NULL OR state <> was_state OR flaps <> lag(flaps) OVER one
            OR (state = 0 OR problem) <> (was_state = 0 OR lag(problem) OVER one)) AS changed,
        removed OR changed OR coalesce(was_vouched_us < at_us, false) AS start
    FROM marked WINDOW one AS (PARTITION BY check_no, life ORDER BY place)
)
SELECT * EXCLUDE (turned, turns, turn_places, trouble_place, was_vouched_us, troubles),
    lead(CASE WHEN start THEN at_us WHEN gap THEN vouched_us END IGNORE NULLS) OVER
        (PARTITION BY check_no ORDER BY at_us, source, boot, seq) AS break_us
FROM compared WHERE start OR gap OR crosses;

CREATE MACRO state_name(code) AS CASE code WHEN 0 THEN 'ok' WHEN 1 THEN 'warning' WHEN 2 THEN 'critical' WHEN 3 THEN 'unknown' END;

CREATE TEMP VIEW check_states AS
SELECT agent, "check", event_id(source, boot, seq) AS id, make_timestamp(at_us) AS time, state_name(state) AS state,
    state = 0 OR problem AS hard, CASE WHEN state = 0 OR problem THEN 0 ELSE attempts END::INTEGER AS attempt,
    state_name(was_state) AS previous, flaps AS flapping, weight / 20 AS flapping_percent
FROM check_kept JOIN check_names USING (check_no) WHERE changed;

CREATE TEMP TABLE check_pieces AS
WITH begun AS (
    SELECT *, hour_of(at_us) AS hour, unnest(
        CASE WHEN first AND coalesce(hour_of(gone_us) <> hour, true) AND at_us % hour_us() <> 0 THEN [hour * hour_us()] ELSE [] END
        || CASE WHEN start AND NOT (gap AND vouched_us = at_us) THEN [at_us] ELSE [] END
        || CASE WHEN gap AND (vouched_us % hour_us() <> 0 OR vouched_us = at_us) THEN [vouched_us] ELSE [] END
        || CASE WHEN NOT removed THEN range((hour + 1) * hour_us(), until_us + 1, hour_us()) ELSE [] END) AS from_us
    FROM check_kept
), judged AS (
    SELECT *, removed OR from_us < at_us AS absent, gap AND vouched_us <= from_us AS unobserved
    FROM begun
), ended AS (
    SELECT *, NOT absent AND NOT unobserved AS seen, least(hour_start(from_us) + hour_us(), CASE WHEN removed OR from_us >= at_us
        THEN least(CASE WHEN gap AND NOT unobserved THEN vouched_us END, break_us) ELSE at_us END, horizon_us()) AS to_us
    FROM judged
)
SELECT agent, "check", from_us, to_us,
    CASE WHEN absent THEN 'absent' WHEN unobserved THEN 'unobserved' WHEN problem AND state > 1 THEN 'down' ELSE 'up' END AS class,
    CASE WHEN removed THEN 'removed' WHEN absent THEN 'unseen' WHEN unobserved THEN 'silent'
        WHEN state <> 0 AND NOT problem THEN 'soft' ELSE state_name(state) END AS reason,
    CASE WHEN removed OR NOT absent THEN event_id(source, boot, seq) END AS evidence,
    CASE WHEN seen THEN state_name(state) END AS state, CASE WHEN seen THEN flaps END AS flapping
FROM ended JOIN check_names USING (check_no) WHERE from_us < to_us;

CREATE TEMP TABLE check_downtimes AS
SELECT agent, "check", downtime, id, at_us, least(ends_us, next_us, 4_611_686_018_427_387_904) AS end_us FROM (
    SELECT identity AS agent, coalesce(service, '') AS "check", coalesce(ref, '') AS downtime,
        event_id(source, boot, seq) AS id, epoch_us("at") AS at_us, kind,
        CAST(TRY_CAST(data->>'$.ends' AS DOUBLE) * 1e6 AS BIGINT) AS ends_us,
        lead(epoch_us("at")) OVER (PARTITION BY identity, coalesce(service, ''), coalesce(ref, '')
            ORDER BY "at", source, boot, seq) AS next_us
    FROM events WHERE kind IN ('downtime.started', 'downtime.ended') AND identity <> ''
) WHERE kind = 'downtime.started' AND end_us > at_us;

-- Each instant shows the downtime that began first of those that hold.
CREATE TEMP TABLE check_timeline AS
WITH held AS (
    SELECT p.*, d.downtime, d.id, d.at_us, d.end_us,
        greatest(p.from_us, max(d.end_us) OVER (PARTITION BY p.agent, p."check", p.from_us ORDER BY d.at_us, d.id, d.end_us
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS reached_us,
        row_number() OVER (PARTITION BY p.agent, p."check", p.from_us ORDER BY d.at_us DESC, d.id DESC, d.end_us DESC) AS left
    FROM check_pieces p JOIN check_downtimes d ON d.agent = p.agent AND (d."check" = '' OR d."check" = p."check")
        AND d.at_us < p.to_us AND d.end_us > p.from_us AND p.class <> 'absent'
), cut AS (
    SELECT agent, "check", reached_us AS from_us, least(at_us, to_us) AS to_us, class, reason, evidence, state, flapping FROM held
    UNION ALL
    SELECT agent, "check", greatest(reached_us, at_us), least(end_us, to_us), 'downtime', downtime, id, state, flapping FROM held
    UNION ALL
    SELECT agent, "check", greatest(reached_us, end_us), to_us, class, reason, evidence, state, flapping FROM held WHERE "left" = 1
)
SELECT 'check' AS subject_kind, agent || '/' || "check" AS subject, from_us, to_us, class, reason, evidence, state, flapping
FROM (
    FROM check_pieces ANTI JOIN held USING (agent, "check", from_us)
    UNION ALL
    FROM cut WHERE from_us < to_us
);
