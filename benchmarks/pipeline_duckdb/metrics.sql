-- metric_trends by hour and day, and the heartbeats that anomalies look at.

-- Results that two Helens recorded: few keys, found by a hash; the rows to drop are named by their ids.
CREATE TEMP TABLE check_twice AS
SELECT hash(identity, ref, hour_of(epoch_us("at"))) AS key FROM events
WHERE kind = 'check.answered' AND ref IS NOT NULL GROUP BY key HAVING count(*) > 1;

CREATE TEMP TABLE metric_again AS
SELECT source, boot, seq FROM (
    SELECT source, boot, seq, row_number() OVER (
        PARTITION BY identity, service, ref, hour_of(epoch_us("at")) ORDER BY "at", source, boot, seq) AS nth
    FROM events
    WHERE kind = 'check.answered' AND ref IS NOT NULL AND hash(identity, ref, hour_of(epoch_us("at"))) IN (FROM check_twice)
) WHERE nth > 1;

CREATE MACRO metric_code(v) AS CASE WHEN v = 0 THEN 0 ELSE
    sign(v)::INTEGER * (ceil(ln(abs(v)) / 0.01980262729617973e0)::INTEGER + 40_000) END;
CREATE MACRO metric_value(code) AS CASE WHEN code = 0 THEN 0e0 ELSE
    sign(code) * exp((abs(code) - 40_000) * 0.01980262729617973e0) * (2e0 / 2.02e0) END;
CREATE MACRO finite(v) AS CASE WHEN abs(v) <= 1e100 THEN v END;

CREATE TEMP TABLE metric_points AS
SELECT identity AS agent, service AS "check", m.name AS metric, epoch_us("at") AS at_us, m.value, m.unit,
    finite(m.warn) AS limit_warn, finite(m.crit) AS limit_crit, finite(m.max) AS limit_max
FROM (
    SELECT identity, service, "at", unnest(metrics) AS m
    FROM events ANTI JOIN metric_again USING (source, boot, seq)
    WHERE kind = 'check.answered' AND identity IS NOT NULL AND service IS NOT NULL
) WHERE m.name IS NOT NULL AND abs(m.value) <= 1e100;

CREATE TEMP TABLE metric_hours AS
SELECT agent, "check", metric, hour_of(at_us)::INTEGER AS hour, count(*) AS count, min(value) AS min, avg(value) AS avg,
    max(value) AS max, least(max(value), greatest(min(value), metric_value(metric_code(quantile_disc(value, 0.95::DOUBLE)))))
        AS p95,
    arg_max({'last': value, 'unit': unit, 'warn': limit_warn, 'crit': limit_crit, 'max': limit_max}, at_us) AS newest
FROM metric_points GROUP BY agent, "check", metric, hour;

CREATE TEMP VIEW metric_days AS
SELECT agent, "check", metric, at_us // 86_400_000_000 AS day, count(*) AS count, min(value) AS min, avg(value) AS avg,
    max(value) AS max, least(max(value), greatest(min(value), metric_value(metric_code(quantile_disc(value, 0.95::DOUBLE)))))
        AS p95,
    arg_max({'last': value, 'unit': unit}, at_us) AS newest
FROM metric_points GROUP BY agent, "check", metric, day;

CREATE TEMP VIEW metric_trends AS
SELECT agent, "check", metric, 'hour' AS grain, make_timestamp(hour::BIGINT * hour_us()) AS start, count, min, avg, max,
    p95, newest.last AS last, newest.unit AS unit FROM metric_hours
UNION ALL
SELECT agent, "check", metric, 'day', make_timestamp(day * 86_400_000_000), count, min, avg, max, p95, newest.last,
    newest.unit FROM metric_days;

CREATE TEMP TABLE beats AS
SELECT identity, hour_of(epoch_us("at"))::INTEGER AS hour, max(seconds) FILTER (seconds BETWEEN 0 AND 1e9) AS gap_seconds
FROM events WHERE kind = 'client.seen' AND identity IS NOT NULL GROUP BY identity, hour;
