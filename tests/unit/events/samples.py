"""One event of every kind, for tests that must see them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.history.events.changes import ConfigChanged, ConfigConflict, ManagementCommanded
from scale0.history.events.checks import (
    AgentDoubled,
    AgentLate,
    AgentMoved,
    AgentRefused,
    CheckAnswered,
    CheckRemoved,
    CheckStateChanged,
    DowntimeEnded,
    DowntimeStarted,
    IncidentClosed,
    IncidentOpened,
    NoticeDropped,
    NoticeSent,
)
from scale0.history.events.clients import (
    ClientChanged,
    ClientJoined,
    ClientLeft,
    ClientLost,
    ClientRefused,
    ClientReplaced,
    ClientSeen,
)
from scale0.history.events.columns import EventMetric
from scale0.history.events.requests import RequestFailed, RequestSummed
from scale0.history.events.sources import (
    BrokerClockSuspect,
    BrokerStarted,
    BrokerStateChanged,
    BrokerStopped,
    PeerJoined,
    PeerLost,
    SourceAlive,
    SourceClockStepped,
)
from scale0.history.events.tasks import TaskAttemptEnded, TaskCompleted, TaskRefused, TaskReopened, TaskSubmitted

if TYPE_CHECKING:
    from scale0.history.events.columns import Event

OFFER: Final = '{"role":"backend","services":["echo","thumbs"],"slots":4}'

SAMPLES: Final[list[tuple[Event, dict[str, object]]]] = [
    (BrokerStarted("east-1", "0.1.0", 3), {"identity": "east-1", "data": '{"boots":3,"version":"0.1.0"}'}),
    (BrokerStopped("east-1", "SIGTERM"), {"identity": "east-1", "data": '{"reason":"SIGTERM"}'}),
    (
        BrokerStateChanged("east-1", "joining", "active"),
        {"identity": "east-1", "state": "active", "data": '{"before":"joining"}'},
    ),
    (
        BrokerClockSuspect("east-1", 5, 3, 61.5),
        {"identity": "east-1", "data": '{"clients":5,"skew_seconds":61.5,"skewed":3}'},
    ),
    (SourceAlive("east-1"), {"identity": "east-1"}),
    (SourceClockStepped("east-1", 3600.0), {"identity": "east-1", "data": '{"back_seconds":3600.0}'}),
    (PeerJoined("west-1", "west", "active"), {"identity": "west-1", "state": "active", "data": '{"group":"west"}'}),
    (PeerLost("west-1", 90.5, "west"), {"at": 90_500_000, "identity": "west-1", "data": '{"group":"west"}'}),
    (ClientJoined("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1", "data": OFFER}),
    (ClientChanged("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1", "data": OFFER}),
    (ClientLeft("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1", "data": OFFER}),
    (
        ClientLost("w1", 97.25, "backend", ("echo", "thumbs"), 4),
        {"at": 97_250_000, "identity": "w1", "data": OFFER},
    ),
    (ClientReplaced("w1", "backend", ("echo", "thumbs"), 4), {"identity": "w1", "data": OFFER}),
    (ClientSeen("w1", 60, 1.25), {"identity": "w1", "code": 60, "seconds": 1.25}),
    (ClientRefused("w1", 400, {"bad": 11}), {"identity": "w1", "code": 400, "data": '{"bad":11}'}),
    (
        RequestSummed("echo", "w1", 12, 0.5, 1200, [(-35, 11), (2, 1)], {"504": 2}),
        {
            "identity": "w1",
            "service": "echo",
            "code": 12,
            "seconds": 0.5,
            "bytes": 1200,
            "histogram": [{"bucket": -35, "count": 11}, {"bucket": 2, "count": 1}],
            "data": '{"failed":{"504":2}}',
        },
    ),
    (
        RequestFailed("echo", "r-1", "w1", 502, 0.75, "f1", 1),
        {
            "identity": "w1",
            "service": "echo",
            "ref": "r-1",
            "code": 502,
            "seconds": 0.75,
            "data": '{"client":"f1","hops":1}',
        },
    ),
    (
        ConfigChanged(7, "bb", "aa", "root"),
        {"identity": "root", "code": 7, "data": '{"hash":"bb","parent":"aa","version":7}'},
    ),
    (
        ConfigConflict(7, "bb", "cc", "west-1"),
        {"identity": "west-1", "code": 7, "data": '{"hash":"bb","other_hash":"cc","version":7}'},
    ),
    (
        ManagementCommanded("root", "set_config", 200, "frontend:01", 6, 7),
        {
            "identity": "root",
            "code": 200,
            "data": '{"after":7,"before":6,"command":"set_config","origin":"frontend:01"}',
        },
    ),
    (
        TaskSubmitted("t-1", "thumbs", "c-1", 7, "east"),
        {"identity": "c-1", "service": "thumbs", "ref": "t-1", "data": '{"group":"east","priority":7}'},
    ),
    (
        TaskAttemptEnded("t-1", "thumbs", 2, "w1", "lost", 0.25, 1.5, -32000),
        {
            "identity": "w1",
            "service": "thumbs",
            "ref": "t-1",
            "attempt": 2,
            "code": -32000,
            "state": "lost",
            "waited": 0.25,
            "seconds": 1.5,
        },
    ),
    (
        TaskCompleted("t-1", "thumbs", 3, "w1", "failed", 0.25, 1.5, -32000),
        {
            "identity": "w1",
            "service": "thumbs",
            "ref": "t-1",
            "attempt": 3,
            "code": -32000,
            "state": "failed",
            "waited": 0.25,
            "seconds": 1.5,
        },
    ),
    (TaskRefused("t-1", "w1", 2, -32021), {"identity": "w1", "ref": "t-1", "attempt": 2, "code": -32021}),
    (TaskReopened("t-1", "thumbs", "c-1"), {"identity": "c-1", "service": "thumbs", "ref": "t-1"}),
    (
        CheckAnswered(
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
            "at": 97_500_000,
            "identity": "web-1",
            "service": "disk",
            "ref": "s1:7",
            "state": "warning",
            "seconds": 0.25,
            "metrics": [
                {"name": "used", "value": 91.5, "unit": "%", "warn": 90.0, "crit": None, "min": None, "max": None}
            ],
            "data": '{"interval":60.0,"max_attempts":3,"message":"full","scheduled":true,"timeout":10.0}',
        },
    ),
    (
        CheckStateChanged("web-1", "disk", "s1:7", 97.5, "critical", True, 0, "ok", False, 5.9, "full", ("silence x",)),
        {
            "at": 97_500_000,
            "identity": "web-1",
            "service": "disk",
            "ref": "s1:7",
            "attempt": 0,
            "state": "critical",
            "data": '{"flapping":false,"flapping_percent":5.9,"hard":true,"message":"full","previous":"ok",'
            '"suppressed":["silence x"]}',
        },
    ),
    (
        IncidentOpened("web-1", "disk", "i-1", 97.5, "critical", "full", ("silence x",)),
        {
            "at": 97_500_000,
            "identity": "web-1",
            "service": "disk",
            "ref": "i-1",
            "state": "critical",
            "data": '{"message":"full","suppressed":["silence x"]}',
        },
    ),
    (
        IncidentClosed("web-1", "disk", "i-1", 97.5, "critical", 60.0, "up"),
        {
            "at": 97_500_000,
            "identity": "web-1",
            "service": "disk",
            "ref": "i-1",
            "state": "critical",
            "seconds": 60.0,
            "data": '{"flapping":false,"reason":"up"}',
        },
    ),
    (CheckRemoved("web-1", "disk"), {"identity": "web-1", "service": "disk"}),
    (
        DowntimeStarted("move", "web-1", "disk", 3600.0, "new rack", "ann", 90.0),
        {
            "at": 90_000_000,
            "identity": "web-1",
            "service": "disk",
            "ref": "move",
            "data": '{"author":"ann","ends":3600.0,"reason":"new rack"}',
        },
    ),
    (
        DowntimeEnded("move", "web-1", "disk", 3600.0, 90.0),
        {"at": 90_000_000, "identity": "web-1", "service": "disk", "ref": "move", "data": '{"ends":3600.0}'},
    ),
    (
        NoticeSent("n-1", "web-1", "disk", "pager", "critical", "t-1"),
        {
            "identity": "web-1",
            "service": "disk",
            "ref": "n-1",
            "state": "critical",
            "data": '{"handler":"pager","task":"t-1"}',
        },
    ),
    (
        NoticeDropped("pager", 12, "limit", "web-1", "disk"),
        {"identity": "web-1", "service": "disk", "code": 12, "data": '{"handler":"pager","reason":"limit"}'},
    ),
    (
        AgentDoubled("web-1", ("10.0.0.1", "10.0.0.2")),
        {"identity": "web-1", "data": '{"addresses":["10.0.0.1","10.0.0.2"]}'},
    ),
    (
        AgentMoved("web-1", "helen-2", 12, 1),
        {"identity": "web-1", "data": '{"checks":12,"from":"helen-2","incidents":1}'},
    ),
    (AgentRefused("web-1", "a second hello"), {"identity": "web-1", "data": '{"reason":"a second hello"}'}),
    (AgentLate("web-1", "disk", "17"), {"identity": "web-1", "service": "disk", "ref": "17"}),
]
"""Each event, and the columns that it fills when it is entered at 100 s."""
