-- request_stats at three grains, from the sums that brokers record; percentiles of the merged histograms.

CREATE TEMP TABLE request_told AS
SELECT coalesce(service, '') AS service, (epoch_us("at") // 60_000_000)::INTEGER AS minute, kind = 'request.summed' AS summed,
    CASE WHEN summed AND code >= 0 THEN code ELSE 0 END AS answered,
    CASE WHEN summed AND bytes BETWEEN 0 AND 1_099_511_627_776 THEN bytes ELSE 0 END AS bytes,
    CASE WHEN summed THEN micros(seconds) END AS max_us,
    CASE WHEN summed THEN histogram END AS histogram,
    CASE WHEN summed THEN json_transform(data, '{"failed": "MAP(VARCHAR, BIGINT)"}').failed
        ELSE MAP {coalesce(code, 0)::VARCHAR: 1::BIGINT} END AS failed
FROM events WHERE kind IN ('request.summed', 'request.failed');

CREATE TEMP TABLE request_minutes AS
SELECT service, minute, sum(answered)::BIGINT AS answered, sum(bytes)::BIGINT AS bytes, max(max_us) AS max_us
FROM request_told GROUP BY service, minute;

CREATE TEMP TABLE request_buckets AS
SELECT service, minute, bucket, sum(count)::BIGINT AS count
FROM (SELECT service, minute, unnest(histogram, recursive := true) FROM request_told)
WHERE count > 0 GROUP BY service, minute, bucket;

CREATE TEMP TABLE request_failures AS
SELECT service, minute, coalesce(TRY_CAST(one.key AS INTEGER), 0) AS code, sum(one.value)::BIGINT AS count
FROM (SELECT service, minute, unnest(map_entries(failed)) AS one FROM request_told WHERE failed IS NOT NULL)
WHERE one.value > 0 GROUP BY service, minute, code;

CREATE MACRO request_grain(grain, minutes) AS TABLE
WITH sums AS (
    SELECT service, minute // minutes AS period, sum(answered)::BIGINT AS answered, sum(bytes)::BIGINT AS bytes,
        max(max_us) AS max_us
    FROM request_minutes GROUP BY service, period
), buckets AS (
    SELECT service, minute // minutes AS period, bucket, sum(count)::BIGINT AS count
    FROM request_buckets GROUP BY service, period, bucket
), listed AS (
    SELECT service, period, list_sort(list({'bucket': bucket, 'count': count})) AS histogram, sum(count)::BIGINT AS total
    FROM buckets GROUP BY service, period
), histograms AS (
    SELECT service, period, histogram, list_reduce(histogram, lambda was, one: {
        'seen': was.seen + one.count,
        'p50': CASE WHEN was.seen >= ceil(0.5e0 * total) THEN was.p50 ELSE one.bucket END,
        'p90': CASE WHEN was.seen >= ceil(0.9e0 * total) THEN was.p90 ELSE one.bucket END,
        'p99': CASE WHEN was.seen >= ceil(0.99e0 * total) THEN was.p99 ELSE one.bucket END
    }, {'seen': 0::BIGINT, 'p50': 0, 'p90': 0, 'p99': 0}) AS ranks
    FROM listed
), failures AS (
    SELECT service, period, map_from_entries(list((code, count))) AS failed
    FROM (SELECT service, minute // minutes AS period, code, sum(count)::BIGINT AS count
          FROM request_failures GROUP BY service, period, code)
    GROUP BY service, period
)
SELECT service, grain AS grain, make_timestamp(period::BIGINT * minutes * 60_000_000) AS start, answered,
    coalesce(failed, MAP {}) AS failed, value_of(ranks.p50) AS p50, value_of(ranks.p90) AS p90,
    value_of(ranks.p99) AS p99,
    max_us / 1e6 AS max, bytes, coalesce(histogram, []) AS histogram
FROM sums LEFT JOIN histograms USING (service, period) LEFT JOIN failures USING (service, period);

CREATE TEMP TABLE request_hours AS FROM request_grain('hour', 60);
CREATE TEMP VIEW request_stats AS
FROM request_grain('minute', 1) UNION ALL FROM request_hours UNION ALL FROM request_grain('day', 1440);
