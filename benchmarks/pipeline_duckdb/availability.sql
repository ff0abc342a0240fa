-- availability by hour, day and month; and noise, which is made of it and of incidents.

CREATE TEMP TABLE availability_hours AS
WITH added AS (
    SELECT subject_kind, subject, hour_of(from_us) AS hour, to_us - from_us AS us, class, reason, flapping,
        0 AS incidents, 0 AS closed, 0 AS closed_down_us
    FROM timeline_us
    UNION ALL
    SELECT subject_kind, subject, hour_of(opened_us), 0, '', '', false, 1, 0, 0 FROM incidents_us WHERE opened_us < horizon_us()
    UNION ALL
    SELECT subject_kind, subject, hour_of(closed_us), 0, '', '', false, 0, 1, down_us FROM incidents_us WHERE closed_us < horizon_us()
)
SELECT subject_kind, subject, hour, sum(us) FILTER (class = 'up') AS up_us, sum(us) FILTER (class = 'down') AS down_us,
    sum(us) FILTER (class = 'downtime') AS downtime_us, sum(us) FILTER (class = 'unobserved') AS unobserved_us,
    sum(us) FILTER (class = 'up' AND reason = 'soft') AS soft_us, sum(us) FILTER (flapping) AS flapping_us,
    sum(incidents) AS incidents, sum(closed) AS closed, sum(closed_down_us) AS closed_down_us
FROM added GROUP BY subject_kind, subject, hour;

CREATE TEMP TABLE availability_days AS
SELECT subject_kind, subject, hour // 24 AS day, sum(up_us) AS up_us, sum(down_us) AS down_us, sum(downtime_us) AS downtime_us,
    sum(unobserved_us) AS unobserved_us, sum(soft_us) AS soft_us, sum(flapping_us) AS flapping_us,
    sum(incidents) AS incidents, sum(closed) AS closed, sum(closed_down_us) AS closed_down_us
FROM availability_hours GROUP BY subject_kind, subject, day;

CREATE TEMP TABLE availability_months AS
SELECT subject_kind, subject, date_trunc('month', DATE '1970-01-01' + day::INTEGER)::TIMESTAMP AS month, sum(up_us) AS up_us,
    sum(down_us) AS down_us, sum(downtime_us) AS downtime_us, sum(unobserved_us) AS unobserved_us, sum(soft_us) AS soft_us,
    sum(flapping_us) AS flapping_us, sum(incidents) AS incidents, sum(closed) AS closed, sum(closed_down_us) AS closed_down_us
FROM availability_days GROUP BY subject_kind, subject, month;

CREATE TEMP VIEW availability AS
WITH sums AS (
    SELECT *, 'hour' AS grain, hour * hour_us() AS start_us, (hour + 1) * hour_us() AS end_us FROM availability_hours
    UNION ALL BY NAME
    SELECT *, 'day' AS grain, day * 24 * hour_us() AS start_us, (day + 1) * 24 * hour_us() AS end_us FROM availability_days
    UNION ALL BY NAME
    SELECT *, 'month' AS grain, epoch_us(month) AS start_us, epoch_us(month + INTERVAL 1 MONTH) AS end_us FROM availability_months
), whole AS (
    SELECT subject_kind, subject, grain, start_us, coalesce(up_us, 0)::DOUBLE AS up, coalesce(down_us, 0)::DOUBLE AS down,
        coalesce(downtime_us, 0)::DOUBLE AS planned, coalesce(unobserved_us, 0)::DOUBLE AS unobserved,
        coalesce(soft_us, 0)::DOUBLE AS soft, incidents::BIGINT AS incidents, closed, closed_down_us::DOUBLE AS closed_down,
        (least(end_us, horizon_us()) - start_us)::DOUBLE AS length, up + down + unobserved AS judged
    FROM sums
)
SELECT subject_kind, subject, grain, make_timestamp(start_us) AS start, up / 1e6 AS up_seconds, down / 1e6 AS down_seconds,
    planned / 1e6 AS downtime_seconds, unobserved / 1e6 AS unobserved_seconds, (length - planned - judged) / 1e6 AS absent_seconds,
    soft / 1e6 AS soft_seconds, CASE WHEN judged > 0 THEN up / judged END AS availability_low,
    CASE WHEN judged > 0 THEN (up + unobserved) / judged END AS availability_high, incidents,
    CASE WHEN closed > 0 THEN closed_down / 1e6 / closed END AS mttr_seconds,
    CASE WHEN incidents > 0 THEN up / 1e6 / incidents END AS mtbf_seconds
FROM whole;

CREATE TEMP VIEW noise AS
WITH added AS (
    SELECT substr(subject, instr(subject, '/') + 1) AS "check", date_trunc('month', make_timestamp(opened_us)) AS month,
        1 AS alerts, coalesce(closed_us - opened_us <= 300_000_000, false)::INTEGER AS quick, 0 AS flapping_us
    FROM incidents_us WHERE subject_kind = 'check'
    UNION ALL
    SELECT substr(subject, instr(subject, '/') + 1), month, 0, 0, flapping_us FROM availability_months WHERE subject_kind = 'check'
), sums AS (
    SELECT "check", month, sum(alerts)::BIGINT AS alerts, sum(quick) AS quick, coalesce(sum(flapping_us), 0) AS flapping_us
    FROM added GROUP BY "check", month
)
SELECT "check", month, alerts, CASE WHEN alerts > 0 THEN quick / alerts END AS closed_quickly_share,
    flapping_us::BIGINT / 1e6 AS flapping_seconds,
    row_number() OVER (PARTITION BY month ORDER BY alerts DESC, flapping_us DESC, "check")::INTEGER AS rank
FROM sums;
