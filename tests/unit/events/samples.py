"""One event of every kind, for tests that must see them all."""

from __future__ import annotations

from typing import Final

from scale0.history.events import changes, checks, clients, requests, sources, tasks
from scale0.history.events.columns import Event, EventMetric

OFFER: Final = '{"role":"backend","services":["echo","thumbs"],"slots":4}'
CHANGED: Final = (
    '{"flapping":false,"flapping_percent":5.9,"hard":true,"message":"full","previous":"ok","suppressed":["silence x"]}'
)
DISK: Final[dict[str, object]] = {"identity": "web-1", "service": "disk"}
TASK: Final[dict[str, object]] = {"identity": "w1", "service": "thumbs", "ref": "t-1"}

_FILLED: Final[list[tuple[Event, dict[str, object], str]]] = [
    (sources.BrokerStarted("east-1", "0.1.0", 3), {"identity": "east-1"}, '{"boots":3,"version":"0.1.0"}'),
    (sources.BrokerStopped("east-1", "SIGTERM"), {"identity": "east-1"}, '{"reason":"SIGTERM"}'),
    (
        sources.BrokerStateChanged("east-1", "joining", "active"),
        {"identity": "east-1", "state": "active"},
        '{"before":"joining"}',
    ),
    (
        sources.BrokerClockSuspect("east-1", 5, 3, 61.5),
        {"identity": "east-1"},
        '{"clients":5,"skew_seconds":61.5,"skewed":3}',
    ),
    (sources.SourceAlive("east-1"), {"identity": "east-1"}, ""),
    (sources.SourceClockStepped("east-1", 3600.0), {"identity": "east-1"}, '{"back_seconds":3600.0}'),
    (sources.PeerJoined("west-1", "west", "active"), {"identity": "west-1", "state": "active"}, '{"group":"west"}'),
    (sources.PeerLost("west-1", 90.5, "west"), {"at": 90_500_000, "identity": "west-1"}, '{"group":"west"}'),
    (clients.ClientJoined("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1"}, OFFER),
    (clients.ClientChanged("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1"}, OFFER),
    (clients.ClientLeft("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1"}, OFFER),
    (clients.ClientLost("w1", 97.25, "backend", ("echo", "thumbs"), 4), {"at": 97_250_000, "identity": "w1"}, OFFER),
    (clients.ClientReplaced("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1"}, OFFER),
    (clients.ClientSeen("w1", 60, 1.25), {"identity": "w1", "code": 60, "seconds": 1.25}, ""),
    (clients.ClientRefused("w1", 400, {"bad": 11}), {"identity": "w1", "code": 400}, '{"bad":11}'),
    (
        requests.RequestSummed("echo", "w1", 12, 0.5, 1200, [(-35, 11), (2, 1)], {"504": 2}),
        {
            "identity": "w1",
            "service": "echo",
            "code": 12,
            "seconds": 0.5,
            "bytes": 1200,
            "histogram": [{"bucket": -35, "count": 11}, {"bucket": 2, "count": 1}],
        },
        '{"failed":{"504":2}}',
    ),
    (
        requests.RequestFailed("echo", "r-1", "w1", 502, 0.75, "f1", 1),
        {"identity": "w1", "service": "echo", "ref": "r-1", "code": 502, "seconds": 0.75},
        '{"client":"f1","hops":1}',
    ),
    (
        changes.ConfigChanged(7, "bb", "aa", "root"),
        {"identity": "root", "code": 7},
        '{"hash":"bb","parent":"aa","version":7}',
    ),
    (
        changes.ConfigConflict(7, "bb", "cc", "west-1"),
        {"identity": "west-1", "code": 7},
        '{"hash":"bb","other_hash":"cc","version":7}',
    ),
    (
        changes.KeyChanged("frontend/web-1", "stored", "k" * 40, ("call:orders.*",), ("call:orders.delete",), 1.9e9),
        {"identity": "frontend/web-1", "state": "stored"},
        f'{{"allow":["call:orders.*"],"deny":["call:orders.delete"],"expires":1900000000.0,"public_key":"{"k" * 40}"}}',
    ),
    (
        changes.ManagementCommanded("root", "set_config", 200, "frontend:01", 6, 7),
        {"identity": "root", "code": 200},
        '{"after":7,"before":6,"command":"set_config","origin":"frontend:01"}',
    ),
    (
        tasks.TaskSubmitted("t-1", "thumbs", "c-1", 7, "east"),
        {"identity": "c-1", "service": "thumbs", "ref": "t-1"},
        '{"group":"east","priority":7}',
    ),
    (
        tasks.TaskAttemptEnded("t-1", "thumbs", 2, "w1", "lost", 0.25, 1.5, -32000),
        {**TASK, "attempt": 2, "code": -32000, "state": "lost", "waited": 0.25, "seconds": 1.5},
        "",
    ),
    (
        tasks.TaskCompleted("t-1", "thumbs", 3, "w1", "failed", 0.25, 1.5, -32000),
        {**TASK, "attempt": 3, "code": -32000, "state": "failed", "waited": 0.25, "seconds": 1.5},
        "",
    ),
    (tasks.TaskRefused("t-1", "w1", 2, -32021), {"identity": "w1", "ref": "t-1", "attempt": 2, "code": -32021}, ""),
    (
        tasks.TaskRefused("t-1", "w1", 2, -32021, 70),
        {"identity": "w1", "ref": "t-1", "attempt": 2, "code": -32021},
        '{"more":70}',
    ),
    (tasks.TaskReopened("t-1", "thumbs", "c-1"), {"identity": "c-1", "service": "thumbs", "ref": "t-1"}, ""),
    (
        checks.CheckAnswered(
            "web-1",
            "disk",
            "s1:7",
            97.5,
            "warning",
            0.25,
            (EventMetric("used", 91.5, "%", 90.0),),
            "full",
            True,
            60.0,
            10.0,
            3,
        ),
        {
            **DISK,
            "at": 97_500_000,
            "ref": "s1:7",
            "state": "warning",
            "seconds": 0.25,
            "metrics": [
                {"name": "used", "value": 91.5, "unit": "%", "warn": 90.0, "crit": None, "min": None, "max": None}
            ],
        },
        '{"interval":60.0,"max_attempts":3,"message":"full","scheduled":true,"timeout":10.0}',
    ),
    (
        checks.CheckStateChanged(
            "web-1", "disk", "s1:7", 97.5, "critical", True, 0, "ok", False, 5.9, "full", ("silence x",)
        ),
        {**DISK, "at": 97_500_000, "ref": "s1:7", "attempt": 0, "state": "critical"},
        CHANGED,
    ),
    (
        checks.IncidentOpened("web-1", "disk", "i-1", 97.5, "critical", "full", ("silence x",)),
        {**DISK, "at": 97_500_000, "ref": "i-1", "state": "critical"},
        '{"message":"full","suppressed":["silence x"]}',
    ),
    (
        checks.IncidentClosed("web-1", "disk", "i-1", 97.5, "critical", 60.0, "up"),
        {**DISK, "at": 97_500_000, "ref": "i-1", "state": "critical", "seconds": 60.0},
        '{"flapping":false,"reason":"up"}',
    ),
    (checks.CheckRemoved("web-1", "disk"), DISK, ""),
    (
        checks.DowntimeStarted("move", "web-1", "disk", 3600.0, "new rack", "ann", 90.0),
        {**DISK, "at": 90_000_000, "ref": "move"},
        '{"author":"ann","ends":3600.0,"reason":"new rack"}',
    ),
    (
        checks.DowntimeEnded("move", "web-1", "disk", 3600.0, 90.0),
        {**DISK, "at": 90_000_000, "ref": "move"},
        '{"ends":3600.0}',
    ),
    (
        checks.NoticeSent("n-1", "web-1", "disk", "pager", "critical", "t-1"),
        {**DISK, "ref": "n-1", "state": "critical"},
        '{"handler":"pager","task":"t-1","via":"queue"}',
    ),
    (
        checks.NoticeDropped("pager", 12, "limit", "web-1", "disk"),
        {**DISK, "code": 12},
        '{"handler":"pager","reason":"limit"}',
    ),
    (
        checks.AgentDoubled("web-1", ("10.0.0.1", "10.0.0.2")),
        {"identity": "web-1"},
        '{"addresses":["10.0.0.1","10.0.0.2"]}',
    ),
    (
        checks.AgentMoved("web-1", "helen-2", 12, 1),
        {"identity": "web-1"},
        '{"checks":12,"from":"helen-2","incidents":1}',
    ),
    (checks.AgentRefused("web-1", "a second hello"), {"identity": "web-1"}, '{"reason":"a second hello"}'),
    (checks.AgentLate("web-1", "disk", "17"), {**DISK, "ref": "17"}, ""),
]
SAMPLES: Final = [(event, columns | ({"data": data} if data else {})) for event, columns, data in _FILLED]
"""Each event, and the columns that it fills when it is entered at 100 s."""
