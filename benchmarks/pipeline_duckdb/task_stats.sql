-- task_stats at three grains: exact nearest ranks by minute, log buckets by hour and day.

CREATE MACRO closes_attempt() AS
    kind = 'task.attempt_ended' OR kind = 'task.completed' AND (
        coalesce(state = 'finished', false)
        OR coalesce(CASE WHEN attempt >= 0 THEN attempt END, 1) >= 1 AND coalesce(identity, '') <> ''
            AND coalesce(code <> -32090, true));

CREATE TEMP TABLE task_told AS
WITH told AS (
    SELECT coalesce(service, '') AS method, (epoch_us("at") // 60_000_000)::INTEGER AS minute, kind, state,
        closes_attempt() AS closes, coalesce(micros(seconds), 0) AS run_us, coalesce(micros(waited), 0) AS wait_us
    FROM events
    WHERE kind IN ('task.submitted', 'task.attempt_ended', 'task.completed')
        AND (kind <> 'task.completed' OR coalesce(state IN ('finished', 'failed', 'cancelled'), false))
)
SELECT method, minute,
    CASE kind WHEN 'task.submitted' THEN 0 WHEN 'task.attempt_ended' THEN 1 ELSE
        CASE state WHEN 'finished' THEN 2 WHEN 'failed' THEN 3 ELSE 4 END END::UTINYINT AS what,
    CASE WHEN closes THEN run_us END AS busy_us,
    CASE WHEN closes AND kind = 'task.completed' THEN run_us END AS run_us,
    CASE WHEN closes THEN wait_us END AS wait_us
FROM told;

CREATE TEMP VIEW task_minutes AS
WITH grouped AS (
    SELECT method, minute,
        count(*) FILTER (what = 0) AS submitted, count(*) FILTER (what = 2) AS finished,
        count(*) FILTER (what = 3) AS failed, count(*) FILTER (what = 4) AS cancelled,
        count(*) FILTER (what = 1) AS retried,
        quantile_disc(wait_us, shares()) AS waits, max(wait_us) AS wait_max,
        quantile_disc(run_us, shares()) AS runs, max(run_us) AS run_max, coalesce(sum(busy_us), 0) AS busy_us
    FROM task_told GROUP BY method, minute
)
SELECT method, 'minute' AS grain, make_timestamp(minute::BIGINT * 60_000_000) AS start,
    submitted, finished, failed, cancelled, retried,
    waits[1] / 1e6 AS wait_p50, waits[2] / 1e6 AS wait_p90, waits[3] / 1e6 AS wait_p99, wait_max / 1e6 AS wait_max,
    runs[1] / 1e6 AS run_p50, runs[2] / 1e6 AS run_p90, runs[3] / 1e6 AS run_p99, run_max / 1e6 AS run_max,
    busy_us::BIGINT / 1e6 AS busy_seconds,
    NULL::STRUCT(bucket INTEGER, count BIGINT)[] AS wait_histogram,
    NULL::STRUCT(bucket INTEGER, count BIGINT)[] AS run_histogram
FROM grouped;

CREATE MACRO task_grain(grain, minutes) AS TABLE
WITH grouped AS (
    SELECT method, minute // minutes AS period,
        count(*) FILTER (what = 0) AS submitted, count(*) FILTER (what = 2) AS finished,
        count(*) FILTER (what = 3) AS failed, count(*) FILTER (what = 4) AS cancelled,
        count(*) FILTER (what = 1) AS retried,
        histogram(bucket_of(wait_us)) AS waits, quantile_disc(wait_us, shares()) AS wait, max(wait_us) AS wait_max,
        histogram(bucket_of(run_us)) AS runs, quantile_disc(run_us, shares()) AS run, max(run_us) AS run_max,
        coalesce(sum(busy_us), 0) AS busy_us
    FROM task_told GROUP BY method, period
)
SELECT method, grain AS grain, make_timestamp(period::BIGINT * minutes * 60_000_000) AS start,
    submitted, finished, failed, cancelled, retried,
    value_of(bucket_of(wait[1])) AS wait_p50, value_of(bucket_of(wait[2])) AS wait_p90,
    value_of(bucket_of(wait[3])) AS wait_p99, wait_max / 1e6 AS wait_max,
    value_of(bucket_of(run[1])) AS run_p50, value_of(bucket_of(run[2])) AS run_p90,
    value_of(bucket_of(run[3])) AS run_p99, run_max / 1e6 AS run_max,
    busy_us::BIGINT / 1e6 AS busy_seconds, entries(waits) AS wait_histogram, entries(runs) AS run_histogram
FROM grouped;

CREATE TEMP TABLE task_hours AS FROM task_grain('hour', 60);
CREATE TEMP VIEW task_stats AS
FROM task_minutes UNION ALL FROM task_hours UNION ALL FROM task_grain('day', 1440);
