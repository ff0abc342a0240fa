-- incidents: from the first down second to the next up or absent one; downtime and unobserved do not close one.

CREATE TEMP TABLE timeline_us AS FROM check_timeline UNION ALL FROM world_timeline;

CREATE TEMP VIEW timeline AS
SELECT subject_kind, subject, make_timestamp(from_us) AS "from", make_timestamp(to_us) AS "to", class, reason, evidence,
    state, flapping
FROM timeline_us;

CREATE TEMP TABLE incidents_us AS
WITH pieces AS (
    SELECT *, coalesce(lag(to_us) OVER (PARTITION BY subject_kind, subject ORDER BY from_us, to_us) = from_us, false) AS touches
    FROM timeline_us WHERE class IN ('down', 'downtime', 'unobserved')
), chained AS (
    SELECT *, max(CASE WHEN NOT touches THEN from_us END) OVER (PARTITION BY subject_kind, subject ORDER BY from_us, to_us) AS chain
    FROM pieces
), opened AS (
    SELECT *, min(CASE WHEN class = 'down' THEN from_us END) OVER
        (PARTITION BY subject_kind, subject, chain ORDER BY from_us, to_us) AS opened_us
    FROM chained
)
SELECT subject_kind, subject, opened_us, CASE WHEN max(to_us) < horizon_us() THEN max(to_us) END AS closed_us,
    max(CASE WHEN class <> 'down' THEN 0 ELSE CASE state WHEN 'ok' THEN 1 WHEN 'warning' THEN 2 WHEN 'unknown' THEN 3
        WHEN 'critical' THEN 4 ELSE 0 END END) AS worst,
    coalesce(sum(to_us - from_us) FILTER (class = 'down'), 0)::BIGINT AS down_us, bool_or(coalesce(flapping, false)) AS flapping
FROM opened WHERE opened_us IS NOT NULL GROUP BY subject_kind, subject, opened_us;

CREATE TEMP VIEW incidents AS
WITH others AS (
    SELECT i.subject_kind, i.subject, i.opened_us, o.subject_kind AS other_kind, o.subject AS other, min(o.opened_us) AS first_us
    FROM incidents_us i JOIN incidents_us o ON o.opened_us BETWEEN i.opened_us - 60_000_000 AND i.opened_us + 60_000_000
    WHERE (i.subject_kind, i.subject) <> (o.subject_kind, o.subject) GROUP BY ALL
), named AS (
    SELECT subject_kind, subject, opened_us, count(*) AS also_failing,
        list({'subject_kind': other_kind, 'subject': other} ORDER BY first_us, other_kind, other)[:10] AS also_failing_first
    FROM others GROUP BY subject_kind, subject, opened_us
)
SELECT subject_kind, subject, make_timestamp(opened_us) AS opened, make_timestamp(closed_us) AS closed,
    CASE worst WHEN 1 THEN 'ok' WHEN 2 THEN 'warning' WHEN 3 THEN 'unknown' WHEN 4 THEN 'critical' ELSE 'down' END AS worst_state,
    down_us / 1e6 AS down_seconds, flapping, coalesce(also_failing, 0) AS also_failing,
    coalesce(also_failing_first, []) AS also_failing_first
FROM incidents_us LEFT JOIN named USING (subject_kind, subject, opened_us);
