-- anomalies: hours that lie far from the same hour of the weeks before, or from the day before.

CREATE TEMP VIEW series AS
SELECT 'method' AS subject_kind, method AS subject, unnest(['task.rate', 'task.p99', 'task.failures']) AS metric,
    epoch_us(start) // hour_us() AS hour, unnest([submitted::DOUBLE, run_p99, failed::DOUBLE]) AS value FROM task_hours
UNION ALL
SELECT 'service', service, unnest(['request.rate', 'request.p99', 'request.failures']), epoch_us(start) // hour_us(),
    unnest([answered::DOUBLE, p99, coalesce(list_sum(map_values(failed)), 0)::DOUBLE]) FROM request_hours
UNION ALL
SELECT 'client', identity, 'heartbeat.gap', hour, gap_seconds FROM beats
UNION ALL
SELECT 'check', agent || '/' || "check", metric, hour, avg FROM metric_hours;

CREATE TEMP VIEW anomalies AS
WITH valued AS (
    SELECT * FROM series WHERE value IS NOT NULL AND hour < hour_of(horizon_us())
), windows AS (
    SELECT *, list(value) OVER (PARTITION BY subject_kind, subject, metric ORDER BY hour RANGE BETWEEN 24 PRECEDING AND 1 PRECEDING)
            AS day,
        list(value) OVER (PARTITION BY subject_kind, subject, metric, hour % 168 ORDER BY hour
            RANGE BETWEEN 1344 PRECEDING AND 1 PRECEDING) AS week
    FROM valued
), chosen AS (
    SELECT *, CASE WHEN len(week) >= 3 THEN 'week' WHEN len(day) >= 12 THEN 'day' END AS basis,
        CASE basis WHEN 'week' THEN week WHEN 'day' THEN day END AS sample,
        list_median(sample) AS expected, list_aggregate(sample, 'mad') AS mad,
        CASE WHEN len(day) >= 12 THEN
            list_median(list_transform(day[2:], lambda value, place: abs(value - day[place]))) END AS step
    FROM windows WHERE len(week) >= 3 OR len(day) >= 12
), judged AS (
    SELECT *, greatest(mad * 1.4826e0, coalesce(step * (1.4826e0 / sqrt(2)) * sqrt(pi() / 2 / len(sample) + 1), 0), CASE
        WHEN subject_kind = 'check' THEN greatest(abs(expected) * 0.02e0, 1e-9)
        WHEN metric IN ('task.rate', 'task.failures', 'request.rate', 'request.failures') THEN sqrt(abs(expected)) + 1
        ELSE greatest(abs(expected) * 0.05e0, CASE WHEN metric = 'heartbeat.gap' THEN 0.1e0 ELSE 0.001e0 END) END) AS deviation
    FROM chosen
)
SELECT subject, metric, make_timestamp(hour * hour_us()) AS hour, value, expected, deviation, abs(value - expected) / deviation AS score,
    subject_kind, basis
FROM judged WHERE score > 3.5;
