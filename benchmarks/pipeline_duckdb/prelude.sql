-- What the other files share. Durations are whole microseconds while they are reckoned with, as in the pipeline.
-- `events` is a view that compute.py makes; horizon_us() and first_us() are macros that it makes.

CREATE MACRO hour_us() AS 3_600_000_000;
CREATE MACRO hour_of(us) AS us // 3_600_000_000;
CREATE MACRO hour_start(us) AS us // 3_600_000_000 * 3_600_000_000;
CREATE MACRO silence_us() AS 150_000_000;
CREATE MACRO event_id(source, boot, seq) AS source || ':' || boot || ':' || seq;

-- A cast rounds half to even; what is missing, negative, NaN or beyond two years is no duration.
CREATE MACRO micros(seconds) AS CASE WHEN seconds >= 0 AND seconds <= 70368744.177663 THEN (seconds * 1e6)::BIGINT END;

-- Log buckets: gamma = 1.02, -698 is below a microsecond.
CREATE MACRO bucket_of(us) AS
    CASE WHEN us >= 1 THEN ceil(ln(us / 1e6) * 50.4983497918439e0)::INTEGER WHEN us = 0 THEN -698 END;
CREATE MACRO value_of(bucket) AS
    CASE WHEN bucket <= -698 THEN 0e0 WHEN bucket IS NOT NULL THEN exp(bucket / 50.4983497918439e0) * (2e0 / 2.02e0) END;
CREATE MACRO shares() AS [0.5::DOUBLE, 0.9::DOUBLE, 0.99::DOUBLE];

-- One event closes an attempt, so times of attempts are summed over events without looking at others.
CREATE MACRO closes_attempt(kind, state, attempt, identity, code) AS
    kind = 'task.attempt_ended' OR kind = 'task.completed' AND (
        coalesce(state = 'finished', false)
        OR coalesce(CASE WHEN attempt >= 0 THEN attempt END, 1) >= 1 AND coalesce(identity, '') <> ''
            AND coalesce(code <> -32090, true));
