-- forecasts: a line through the hourly averages of 14 days, and where it meets the limit. Sums by day, then windows over
-- days; values are taken from the mean of their series, so that nothing large is subtracted.

-- Hours from a base as a time; a line of two weeks says nothing beyond ten years.
CREATE MACRO time_at(x, base) AS CASE WHEN abs(x) <= 87600
    THEN make_timestamp(round(x * 3.6e9)::BIGINT + base::BIGINT * hour_us()) END;

CREATE TEMP VIEW forecasts AS
WITH days AS (
    SELECT agent, "check", metric, hour // 24 AS day, regr_count(avg, hour + 0.5e0) AS n, regr_avgx(avg, hour + 0.5e0) AS mean_x,
        regr_avgy(avg, hour + 0.5e0) AS mean_y, regr_sxx(avg, hour + 0.5e0) AS sxx, regr_sxy(avg, hour + 0.5e0) AS sxy,
        regr_syy(avg, hour + 0.5e0) AS syy, min(hour) AS first_hour, max(hour) AS last_hour, arg_max(newest, hour) AS newest
    FROM metric_hours GROUP BY agent, "check", metric, day
), centred AS (
    SELECT *, avg(mean_y) OVER (PARTITION BY agent, "check", metric) AS base_y, day * 24 AS base_x FROM days
), spans AS (
    SELECT agent, "check", metric, day, last_hour, newest, base_y, base_x,
        min(first_hour) OVER fit AS first_hour, sum(n) OVER fit AS n,
        sum(n * (mean_x - first_x)) OVER fit / sum(n) OVER fit AS mx, sum(n * (mean_y - base_y)) OVER fit / sum(n) OVER fit AS my,
        sum(sxx + n * (mean_x - first_x) ** 2) OVER fit AS xx,
        sum(sxy + n * (mean_x - first_x) * (mean_y - base_y)) OVER fit AS xy,
        sum(syy + n * (mean_y - base_y) ** 2) OVER fit AS yy, first_x
    FROM (SELECT *, min(day) OVER (PARTITION BY agent, "check", metric) * 24 AS first_x FROM centred)
    WINDOW fit AS (PARTITION BY agent, "check", metric ORDER BY day RANGE BETWEEN 13 PRECEDING AND CURRENT ROW)
), sums AS (
    SELECT * EXCLUDE (n), n::DOUBLE AS n, mx + first_x - base_x AS mean_x, my + base_y AS mean_y, greatest(0, xx - n * mx * mx) AS sxx,
        xy - n * mx * my AS sxy, greatest(0, yy - n * my * my) AS syy,
        newest.warn AS warn, newest.crit AS crit, newest.max AS most
    FROM spans WHERE newest.crit IS NOT NULL OR newest.max IS NOT NULL
), fitted AS (
    SELECT *, syy <= (mean_y * 1e-12) ** 2 * n AS flat, CASE WHEN sxx > 0 THEN CASE WHEN flat THEN 0 ELSE sxy / sxx END END AS slope,
        CASE WHEN NOT flat AND sxx > 0 THEN least(1, sxy * sxy / (sxx * syy)) END AS r2,
        mean_y + slope * (last_hour + 1 - base_x - mean_x) AS value
    FROM sums
), limited AS (
    SELECT *, CASE
        WHEN slope > 0 THEN least(CASE WHEN crit >= value AND (warn IS NULL OR warn <= crit) THEN crit END, CASE WHEN most >= value THEN most END)
        WHEN slope < 0 THEN CASE WHEN crit <= value AND (warn IS NULL OR warn >= crit) THEN crit END END AS ahead,
        ahead IS NOT NULL AND r2 >= 0.5 AND n >= 48 AS fits,
        CASE WHEN fits THEN ahead - mean_y END AS rise,
        1.6448536269514722e0 + 1.5237691475737816e0 / (n - 2) + 1.4202029826359421e0 / ((n - 2) * (n - 2)) AS t,
        CASE WHEN fits THEN greatest(0, syy - sxy * slope) / (n - 2) * t * t END AS noise, slope * slope - noise / sxx AS square,
        sqrt(greatest(0, slope * slope * rise * rise - square * (rise * rise - noise / n))) AS root
    FROM fitted
), met AS (
    SELECT *, rise / slope + mean_x AS at_x, CASE WHEN square > 0 THEN (slope * rise - root) / square + mean_x END AS low_x,
        CASE WHEN square > 0 THEN (slope * rise + root) / square + mean_x END AS high_x
    FROM limited
)
SELECT agent, "check", metric, make_timestamp(day * 24 * hour_us()) AS as_of, slope * 24 AS slope,
    make_timestamp(first_hour::BIGINT * hour_us()) AS fitted_from, make_timestamp((last_hour + 1)::BIGINT * hour_us()) AS fitted_to,
    coalesce(ahead, crit, most) AS "limit", time_at(at_x, base_x) AS exhausted_at,
    CASE WHEN time_at(at_x, base_x) IS NOT NULL THEN time_at(low_x, base_x) END AS exhausted_low,
    CASE WHEN time_at(at_x, base_x) IS NOT NULL THEN time_at(high_x, base_x) END AS exhausted_high, r2, value, n::INTEGER AS points
FROM met;
