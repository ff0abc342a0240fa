-- Brokers, clients, agents and services: from pulses to watching, to sessions, to boundaries, to states, to a timeline.

-- What a source recorded in a minute, seq by seq without a gap.
CREATE TEMP TABLE pulses AS
WITH minutes AS (
    SELECT source, boot, epoch_us(time) // 60_000_000 AS minute, min(seq) AS first_seq, max(seq) AS seq,
        epoch_us(min(time)) AS first_us, epoch_us(max(time)) AS last_us, count(*) AS events
    FROM events GROUP BY source, boot, minute
), islands AS (
    SELECT source, boot, epoch_us(time) // 60_000_000 AS minute, seq, epoch_us(time) AS us,
        seq - row_number() OVER (PARTITION BY source, boot ORDER BY seq) AS island
    FROM events
    WHERE (source, boot, epoch_us(time) // 60_000_000) IN
        (SELECT (source, boot, minute) FROM minutes WHERE events < seq - first_seq + 1)
)
SELECT source, boot, first_seq, seq, first_us, last_us, events FROM minutes WHERE events = seq - first_seq + 1
UNION ALL
SELECT source, boot, min(seq), max(seq), min(us), max(us), count(*) FROM islands GROUP BY source, boot, minute, island;

CREATE TEMP TABLE links AS
WITH heard AS (
    SELECT p.*, s.seq IS NOT NULL AS stopped,
        lag(p.last_us) OVER own AS own_last_us, lag(p.seq) OVER own AS own_seq, lead(p.first_us) OVER own AS own_next_us
    FROM pulses p LEFT JOIN (SELECT source, boot, seq FROM events WHERE kind = 'broker.stopped') s
        ON s.source = p.source AND s.boot = p.boot AND s.seq = p.seq
    WINDOW own AS (PARTITION BY p.source, p.boot ORDER BY p.first_us, p.first_seq)
), begun AS (
    SELECT *, own_last_us IS NULL AS begins,
        last_value(CASE WHEN first_us - own_last_us > silence_us() THEN first_us END IGNORE NULLS) OVER own AS opened_us,
        CASE WHEN begins THEN lag(seq) OVER boots ELSE own_seq END AS before_seq,
        max(last_us) OVER boots AS heard_us,
        lead(CASE WHEN begins THEN {'us': first_us, 'boot': boot, 'seq': first_seq} END IGNORE NULLS) OVER boots AS begin
    FROM heard
    WINDOW own AS (PARTITION BY source, boot ORDER BY first_us, first_seq),
        boots AS (PARTITION BY source ORDER BY first_us, boot, first_seq)
), holed AS (
    SELECT *, coalesce(first_seq > before_seq + 1, false) AS hole, begins AND coalesce(first_seq <= before_seq, false) AS rewind
    FROM begun
)
SELECT *,
    lead({'first_us': first_us, 'boot': boot, 'first_seq': first_seq, 'hole': hole, 'begins': begins}) OVER
        (PARTITION BY source ORDER BY first_us, boot, first_seq) AS next,
    CASE WHEN coalesce(own_next_us - last_us > silence_us(), false) OR own_next_us IS NULL
            AND (begin IS NOT NULL OR horizon_us() - last_us > silence_us() OR stopped)
        THEN last_us END AS lost_us
FROM holed;

CREATE TEMP TABLE boots AS
SELECT source, boot, list({'us': lost_us, 'seq': seq, 'begin': begin} ORDER BY lost_us, seq) FILTER (lost_us IS NOT NULL) AS breaks
FROM links GROUP BY source, boot;

CREATE TEMP TABLE segments AS
WITH said AS (
    SELECT identity, coalesce(offer.role, '') AS role, source, boot, epoch_us("at") AS at_us, seq, kind,
        CASE WHEN kind IN ('client.joined', 'client.changed') THEN
            list_sort(list_distinct(coalesce(offer.services, []))) END AS services,
        CASE WHEN kind IN ('client.joined', 'client.changed') THEN coalesce(offer.slots, 0) END AS slots,
        CASE WHEN kind = 'client.lost' THEN seq END AS mark
    FROM (SELECT *, json_transform(data, '{"role": "VARCHAR", "services": ["VARCHAR"], "slots": "BIGINT"}') AS offer FROM events
          WHERE kind IN ('client.joined', 'client.changed', 'client.left', 'client.lost', 'client.replaced')
              AND identity IS NOT NULL)
    UNION ALL
    SELECT identity, unnest(['backend', 'frontend']), source, boot, at_us, seq, kind, NULL, NULL, NULL
    FROM (SELECT identity, source, boot, epoch_us("at") AS at_us, seq, kind FROM events
          WHERE kind = 'client.seen' AND identity IS NOT NULL)
        SEMI JOIN (SELECT DISTINCT source AS o_source, boot AS o_boot, opened_us FROM links WHERE opened_us IS NOT NULL)
        ON source = o_source AND boot = o_boot AND at_us >= opened_us AND at_us < opened_us + 600_000_000
), watched AS (
    SELECT said.*, breaks, coalesce(len(list_filter(breaks, lambda one: one.us < at_us)), 0) AS watch,
        kind IN ('client.joined', 'client.changed', 'client.seen')
            AND coalesce(seq < max(mark) OVER (PARTITION BY identity, role, source, boot ORDER BY at_us, seq
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS dead
    FROM said LEFT JOIN boots USING (source, boot)
), born AS (
    SELECT * REPLACE (CASE WHEN dead THEN 'stillborn' ELSE kind END AS kind)
    FROM watched WHERE NOT (dead AND kind IN ('client.changed', 'client.seen'))
), living AS (
    SELECT *, CASE WHEN kind <> 'client.seen' THEN kind IN ('client.joined', 'client.changed')
        ELSE coalesce(last_value(CASE WHEN kind <> 'client.seen' THEN kind IN ('client.joined', 'client.changed') END IGNORE NULLS)
            OVER (PARTITION BY identity, role, source, boot ORDER BY at_us, seq), false) END AS alive
    FROM born
), revived AS (
    SELECT *, kind = 'client.joined' OR kind IN ('client.changed', 'client.seen') AND alive
        AND NOT coalesce(lag(alive) OVER one AND lag(watch) OVER one = watch, false) AS starts
    FROM living WINDOW one AS (PARTITION BY identity, role, source, boot ORDER BY at_us, seq)
), known AS (
    SELECT * REPLACE (last_value(services IGNORE NULLS) OVER one AS services, last_value(slots IGNORE NULLS) OVER one AS slots),
        last_value(CASE WHEN starts OR kind = 'stillborn' THEN {'us': at_us, 'id': event_id(source, boot, seq)} END IGNORE NULLS)
            OVER one AS session,
        lead({'at_us': at_us, 'seq': seq, 'kind': kind, 'watch': watch, 'starts': starts}) OVER one AS next
    FROM revived WHERE kind <> 'client.seen' OR starts
    WINDOW one AS (PARTITION BY identity, role, source, boot ORDER BY at_us, seq)
), broken AS (
    SELECT *, coalesce(next.watch = watch, false) AND kind <> 'stillborn' AS here, breaks[watch + 1] AS break
    FROM known WHERE kind IN ('stillborn', 'client.changed') OR starts
), ended AS (
    SELECT *,
        MAP {'client.left': 'left', 'client.lost': 'lost', 'client.replaced': 'replaced', 'client.joined': 'replaced',
            'stillborn': 'replaced'}[next.kind] AS next_reason,
        CASE WHEN kind = 'stillborn' THEN at_us WHEN here THEN next.at_us ELSE break.us END AS to_us,
        CASE WHEN kind = 'stillborn' THEN 'lost' WHEN here THEN next_reason WHEN break IS NOT NULL THEN 'broker_lost' END AS reason,
        CASE WHEN kind = 'stillborn' THEN seq WHEN here THEN next.seq ELSE break.seq END AS end_seq,
        next IS NOT NULL AND coalesce(next.at_us <= break.begin.us, true) AS heard
    FROM broken
)
SELECT identity, role, source, boot, session.id AS id, session.us AS joined_us, at_us AS from_us, seq AS from_seq, to_us, reason,
    end_seq, services, slots,
    CASE WHEN reason = 'broker_lost' THEN CASE WHEN heard THEN next.at_us ELSE break.begin.us END END AS over_us,
    CASE WHEN reason = 'broker_lost' THEN CASE WHEN heard THEN CASE WHEN next.starts THEN 'back' ELSE next_reason END
        WHEN break.begin IS NOT NULL THEN 'restarted' END END AS over_reason,
    CASE WHEN reason = 'broker_lost' THEN CASE WHEN heard THEN event_id(source, boot, next.seq)
        WHEN break.begin IS NOT NULL THEN event_id(source, break.begin.boot, break.begin.seq) END END AS over_id
FROM ended;

CREATE TEMP VIEW sessions AS
SELECT identity, id, make_timestamp(joined_us) AS joined, make_timestamp(CASE WHEN over THEN to_us END) AS "left",
    CASE WHEN over THEN reason ELSE 'open' END AS reason, source AS broker, role, services, slots
FROM (SELECT *, coalesce(to_us <= horizon_us(), false) AS over FROM segments) WHERE NOT over OR reason IS NOT NULL;

CREATE TEMP TABLE agent_downtimes AS
SELECT *, least(told_us, planned_us) AS over_us FROM (
    SELECT identity, kind, source, boot, seq, epoch_us("at") AS first_us,
        floor(TRY_CAST(data->>'$.ends' AS DOUBLE) * 1e6 + 0.5)::BIGINT AS planned_us,
        min(CASE WHEN kind = 'downtime.ended' THEN epoch_us("at") END) OVER (PARTITION BY identity, coalesce(ref, '')
            ORDER BY "at", source, boot, seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS told_us
    FROM events
    WHERE kind IN ('downtime.started', 'downtime.ended') AND coalesce(service, '') = '' AND identity IS NOT NULL
) WHERE kind = 'downtime.started' AND (over_us IS NULL OR over_us > first_us);

-- The instants at which something about a subject changes. Counts are differences, the rest is null unless it is new.
CREATE TEMP TABLE boundaries AS
WITH clients AS (
    SELECT * REPLACE (CASE WHEN role = 'backend' THEN slots ELSE 0 END AS slots),
        CASE WHEN role = 'agent' THEN 'agent' ELSE 'client' END AS subject_kind
    FROM segments WHERE role <> 'frontend'
), services AS (
    SELECT * EXCLUDE (services), unnest(services) AS subject FROM segments WHERE role = 'backend'
), gaps AS (
    SELECT *, next IS NOT NULL AS ends, heard_us AS gap_us
    FROM links
    WHERE CASE WHEN next IS NULL THEN horizon_us() - heard_us > silence_us() OR stopped
        ELSE next.begins OR next.hole OR next.first_us - heard_us > silence_us() END
), said AS (
    SELECT *, epoch_us("at") AS at_us,
        {'lost': kind = 'peer.lost', 'us': epoch_us("at"), 'id': event_id(source, boot, seq)} AS peer
    FROM events WHERE kind IN ('broker.started', 'peer.joined', 'peer.lost')
)
SELECT subject_kind, identity AS subject, from_us AS at_us, source, boot, from_seq AS seq, 0 AS rank, 1 AS live, 0 AS doubt,
    0 AS down, slots, CASE WHEN from_us = joined_us THEN id END AS start_id, NULL::VARCHAR AS end_id, NULL::VARCHAR AS down_id,
    NULL::STRUCT(us BIGINT, source VARCHAR, boot BIGINT, seq BIGINT, reason VARCHAR, id VARCHAR) AS "end",
    NULL::STRUCT(us BIGINT, source VARCHAR, boot BIGINT, seq BIGINT, reason VARCHAR, id VARCHAR) AS over,
    NULL::BIGINT AS ended_us, NULL::STRUCT(class VARCHAR, reason VARCHAR, heard_us BIGINT) AS watch,
    NULL::STRUCT(lost BOOLEAN, us BIGINT, id VARCHAR) AS peer, NULL::BOOLEAN AS known
FROM clients
UNION ALL BY NAME
SELECT subject_kind, identity AS subject, to_us AS at_us, source, boot, end_seq AS seq,
    (reason IN ('broker_lost', 'lost'))::INTEGER AS rank, -1 AS live, 0 AS doubt, 0 AS down, -slots AS slots,
    CASE WHEN reason IS NOT NULL THEN {'us': to_us, 'source': source, 'boot': boot, 'seq': end_seq, 'reason': reason,
        'id': event_id(source, boot, end_seq)} END AS "end"
FROM clients WHERE to_us IS NOT NULL
UNION ALL BY NAME
SELECT subject_kind, identity AS subject, over_us AS at_us, source, boot, end_seq AS seq, 0 AS rank, 0 AS live, 0 AS doubt,
    0 AS down, 0 AS slots,
    {'us': to_us, 'source': source, 'boot': boot, 'seq': end_seq, 'reason': over_reason, 'id': over_id} AS over
FROM clients WHERE over_us IS NOT NULL
UNION ALL BY NAME
SELECT 'service' AS subject_kind, subject, from_us AS at_us, source, boot, from_seq AS seq, 0 AS rank, 1 AS live, 0 AS doubt,
    0 AS down, 0 AS slots, event_id(source, boot, from_seq) AS start_id
FROM services
UNION ALL BY NAME
SELECT 'service' AS subject_kind, subject, to_us AS at_us, source, boot, end_seq AS seq, 0 AS rank, -1 AS live,
    coalesce(reason = 'broker_lost', false)::INTEGER AS doubt, 0 AS down, 0 AS slots, event_id(source, boot, end_seq) AS end_id,
    to_us AS ended_us
FROM services WHERE to_us IS NOT NULL
UNION ALL BY NAME
SELECT 'service' AS subject_kind, subject, over_us AS at_us, source, boot, end_seq AS seq, 1 AS rank, 0 AS live, -1 AS doubt,
    0 AS down, 0 AS slots, over_id AS end_id
FROM services WHERE over_us IS NOT NULL
UNION ALL BY NAME
SELECT 'service' AS subject_kind, subject, to_us + 604_800_000_000 AS at_us, source, boot, end_seq AS seq, 0 AS rank, 0 AS live,
    0 AS doubt, 0 AS down, 0 AS slots
FROM services WHERE to_us IS NOT NULL
UNION ALL BY NAME
SELECT 'broker' AS subject_kind, source AS subject, gap_us AS at_us, source, boot, seq, 1 AS rank, 0 AS live, 0 AS doubt, 0 AS down,
    0 AS slots, event_id(source, boot, seq) AS end_id,
    {'class': CASE WHEN stopped THEN 'down' ELSE 'unobserved' END, 'reason': CASE WHEN stopped THEN 'stopped' ELSE 'silent' END,
        'heard_us': heard_us} AS watch
FROM gaps WHERE NOT ends
UNION ALL BY NAME
SELECT 'broker' AS subject_kind, source AS subject, gap_us AS at_us, source, boot, seq, 2 AS rank, 0 AS live, 0 AS doubt, 0 AS down,
    0 AS slots, CASE WHEN stopped AND NOT next.hole THEN event_id(source, boot, seq)
        ELSE event_id(source, next.boot, next.first_seq) END AS end_id,
    {'class': CASE WHEN next.hole THEN 'unobserved' ELSE 'down' END, 'reason': CASE WHEN next.hole THEN 'hole'
        WHEN stopped THEN 'stopped' WHEN next.begins THEN 'restarted' ELSE 'asleep' END, 'heard_us': heard_us} AS watch
FROM gaps WHERE ends AND next.first_us > gap_us
UNION ALL BY NAME
SELECT 'broker' AS subject_kind, source AS subject, next.first_us AS at_us, source, next.boot AS boot, next.first_seq AS seq, 0 AS rank,
    0 AS live, 0 AS doubt, 0 AS down, 0 AS slots, event_id(source, next.boot, next.first_seq) AS start_id,
    {'class': 'up', 'reason': 'watching', 'heard_us': heard_us} AS watch
FROM gaps WHERE ends AND next.first_us > gap_us
UNION ALL BY NAME
SELECT 'broker' AS subject_kind, source AS subject, at_us, source, boot, seq, 0 AS rank, 0 AS live, 0 AS doubt, 0 AS down, 0 AS slots,
    event_id(source, boot, seq) AS start_id, peer, true AS known
FROM said WHERE kind = 'broker.started'
UNION ALL BY NAME
SELECT 'broker' AS subject_kind, identity AS subject, at_us, source, boot, seq, 0 AS rank, 0 AS live, 0 AS doubt, 0 AS down, 0 AS slots, peer
FROM said WHERE kind <> 'broker.started' AND identity IS NOT NULL
UNION ALL BY NAME
SELECT 'agent' AS subject_kind, identity AS subject, first_us AS at_us, source, boot, seq, 0 AS rank, 0 AS live, 0 AS doubt, 1 AS down,
    0 AS slots, event_id(source, boot, seq) AS down_id
FROM agent_downtimes
UNION ALL BY NAME
SELECT 'agent' AS subject_kind, identity AS subject, over_us AS at_us, source, boot, seq, 0 AS rank, 0 AS live, 0 AS doubt, -1 AS down,
    0 AS slots
FROM agent_downtimes WHERE over_us IS NOT NULL;

-- How every subject stands, instant by instant; a run of one class and reason keeps the evidence that it began with.
CREATE TEMP TABLE states AS
WITH totals AS (
    SELECT subject_kind, subject, at_us, sum(live) OVER one AS live, sum(doubt) OVER one AS doubt, sum(down) OVER one AS down,
        sum(slots) OVER one AS slots, last_value(start_id IGNORE NULLS) OVER one AS start_id,
        last_value(end_id IGNORE NULLS) OVER one AS end_id, last_value(down_id IGNORE NULLS) OVER one AS down_id,
        last_value("end" IGNORE NULLS) OVER one AS "end", last_value(watch IGNORE NULLS) OVER one AS watch,
        last_value(peer IGNORE NULLS) OVER one AS peer, last_value(known IGNORE NULLS) OVER one AS known,
        max(over) OVER one AS over, max(ended_us) OVER one AS ended_us, lead(at_us) OVER one AS next_us
    FROM boundaries WHERE at_us <= horizon_us()
    WINDOW one AS (PARTITION BY subject_kind, subject ORDER BY at_us, source, boot, seq, rank, end_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), lasting AS (
    SELECT *, CASE WHEN coalesce(("end".us, "end".source, "end".boot, "end".seq) = (over.us, over.source, over.boot, over.seq), false)
        THEN over ELSE "end" END AS latest,
        coalesce(peer.lost AND peer.us >= watch.heard_us - silence_us(), false) AS missed
    FROM totals WHERE next_us IS NULL OR next_us > at_us
), classed AS (
    SELECT *, CASE
        WHEN subject_kind = 'broker' THEN CASE
            WHEN known IS NULL THEN {'class': 'absent', 'reason': 'away', 'evidence': NULL::VARCHAR}
            WHEN watch IS NULL OR watch.class = 'up' THEN {'class': 'up', 'reason': 'watching', 'evidence': start_id}
            WHEN watch.reason = 'silent' AND missed THEN {'class': 'down', 'reason': 'peer_lost', 'evidence': peer.id}
            ELSE {'class': watch.class, 'reason': watch.reason, 'evidence': end_id} END
        WHEN subject_kind = 'service' THEN CASE
            WHEN live > 0 THEN {'class': 'up', 'reason': 'offered', 'evidence': start_id}
            WHEN ended_us IS NULL OR at_us >= ended_us + 604_800_000_000
                THEN {'class': 'absent', 'reason': 'away', 'evidence': NULL::VARCHAR}
            WHEN doubt > 0 THEN {'class': 'unobserved', 'reason': 'broker_lost', 'evidence': end_id}
            ELSE {'class': 'down', 'reason': 'no_backend', 'evidence': end_id} END
        WHEN live > 0 THEN {'class': 'up', 'reason': 'session', 'evidence': start_id}
        WHEN "end" IS NULL OR "end".reason IS NULL THEN {'class': 'absent', 'reason': 'away', 'evidence': NULL::VARCHAR}
        WHEN latest.reason = 'left' THEN {'class': 'absent', 'reason': 'left', 'evidence': latest.id}
        WHEN latest.reason = 'broker_lost' THEN {'class': 'unobserved', 'reason': 'broker_lost', 'evidence': latest.id}
        ELSE {'class': 'down', 'reason': latest.reason, 'evidence': latest.id} END AS stands
    FROM lasting
), begun AS (
    SELECT *, CASE WHEN lag((stands.class, stands.reason)) OVER one IS DISTINCT FROM (stands.class, stands.reason)
            THEN {'id': stands.evidence} END AS why,
        CASE WHEN down > 0 AND coalesce(lag(down) OVER one, 0) = 0 THEN {'id': down_id} END AS planned
    FROM classed WINDOW one AS (PARTITION BY subject_kind, subject ORDER BY at_us)
)
SELECT subject_kind, subject, at_us, next_us, stands.class AS class, stands.reason AS reason, live, slots,
    (last_value(why IGNORE NULLS) OVER one).id AS evidence, down, (last_value(planned IGNORE NULLS) OVER one).id AS down_evidence
FROM begun WINDOW one AS (PARTITION BY subject_kind, subject ORDER BY at_us);

-- A subject has rows in the hours in which it is anything but absent, and they cover such an hour wholly.
CREATE TEMP TABLE world_timeline AS
WITH been AS (
    SELECT *, bool_or(class <> 'absent') OVER (PARTITION BY subject_kind, subject ORDER BY at_us) AS been FROM states
), shown AS (
    SELECT subject_kind, subject, at_us, CASE WHEN down > 0 AND class <> 'absent'
        THEN {'class': 'downtime', 'reason': 'downtime', 'evidence': down_evidence}
        ELSE {'class': class, 'reason': reason, 'evidence': evidence} END AS stands
    FROM been WHERE been
), compared AS (
    SELECT *, lag(stands) OVER one AS before FROM shown WINDOW one AS (PARTITION BY subject_kind, subject ORDER BY at_us)
), spans AS (
    SELECT subject_kind, subject, stands.class AS class, stands.reason AS reason, stands.evidence AS evidence, at_us AS from_us,
        before IS NULL AS appears, lead(at_us) OVER one IS NOT NULL AS followed, coalesce(lead(at_us) OVER one, horizon_us()) AS to_us
    FROM compared WHERE before IS NULL OR stands IS DISTINCT FROM before
    WINDOW one AS (PARTITION BY subject_kind, subject ORDER BY at_us)
), cut AS (
    SELECT subject_kind, subject, class, reason, evidence, greatest(from_us, start_us) AS from_us,
        least(to_us, start_us + hour_us()) AS to_us
    FROM (SELECT *, unnest(range(hour_start(from_us), to_us, hour_us())) AS start_us FROM spans WHERE class <> 'absent')
    UNION ALL
    SELECT subject_kind, subject, 'absent', 'away', NULL, hour_start(from_us), from_us FROM spans WHERE appears
    UNION ALL
    SELECT subject_kind, subject, class, reason, evidence, from_us, least(to_us, hour_start(from_us) + hour_us())
    FROM spans
    WHERE class = 'absent' AND (from_us > hour_start(from_us)
        OR followed AND to_us > hour_start(to_us) AND hour_start(to_us) = hour_start(from_us))
    UNION ALL
    SELECT subject_kind, subject, 'absent', 'away', NULL, hour_start(to_us), to_us
    FROM spans WHERE class = 'absent' AND followed AND to_us > hour_start(to_us) AND hour_start(to_us) > hour_start(from_us)
)
SELECT subject_kind, subject, from_us, to_us, class, reason, evidence, NULL::VARCHAR AS state, NULL::BOOLEAN AS flapping
FROM cut WHERE from_us < to_us;

CREATE TEMP VIEW audit AS
SELECT source, DATE '1970-01-01' + (first_us // 86_400_000_000)::INTEGER AS day, sum(events)::BIGINT AS events,
    min(first_seq) AS first_seq, max(seq) AS last_seq, count_if(hole) AS holes, count_if(rewind) AS rewinds,
    0::BIGINT AS duplicates, 0::BIGINT AS rejected
FROM links GROUP BY source, day;

CREATE TEMP VIEW node_stats AS
WITH work AS (
    SELECT identity AS node, hour_of(epoch_us("at")) AS hour, count(*) AS attempts,
        sum(coalesce(micros(seconds), 0)) AS busy_us, count_if(state = 'lost') AS lost
    FROM events WHERE kind IN ('task.attempt_ended', 'task.completed') AND identity <> '' AND closes_attempt(kind, state, attempt, identity, code)
    GROUP BY node, hour
), offered AS (
    SELECT subject AS node, hour_of(start_us) AS hour, max(slots) AS slots
    FROM (SELECT subject, slots, unnest(range(hour_start(at_us), coalesce(next_us, horizon_us()), hour_us())) AS start_us FROM states
          WHERE subject_kind = 'client' AND live > 0 AND at_us < coalesce(next_us, horizon_us()))
    GROUP BY node, hour HAVING max(slots) > 0
)
SELECT node, make_timestamp(hour * hour_us()) AS hour, coalesce(attempts, 0) AS attempts, coalesce(busy_us, 0)::BIGINT / 1e6 AS busy_seconds,
    slots::BIGINT AS slots, coalesce(lost, 0) AS lost
FROM work FULL JOIN offered USING (node, hour);
