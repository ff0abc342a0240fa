"""What is wrong, in words: a pure function from what was seen to findings."""

from __future__ import annotations

from typing import Any

from scale0.client.admin.health import LOOK_TASKS, MAX_OF_A_KIND, HealthFinding, NetworkSnapshot, found_in, parts, worst

WELL: dict[str, Any] = {
    "broker": "b1",
    "state": "active",
    "draining": False,
    "full": False,
    "config_version": 3,
    "error_clients": 0,
}
CHECK: dict[str, Any] = {
    "agent": "web-1",
    "check": "disk",
    "state": "critical",
    "hard": True,
    "message": "98 % used\nof /",
    "incident": "",
    "suppressed": [],
    "stale": False,
}
INCIDENT: dict[str, Any] = {
    "id": "i-1",
    "agent": "web-1",
    "check": "disk",
    "worst": "critical",
    "closed": None,
    "message": "98 % used",
}


def findings(
    status: dict[str, Any] | None,
    peers: Any = None,
    services: Any = None,
    checks: Any = None,
    incidents: Any = None,
    **more: Any,
) -> list[HealthFinding]:
    return found_in(
        NetworkSnapshot(status=status, peers=peers, services=services, checks=checks, incidents=incidents, **more)
    )


def said(*found: HealthFinding) -> list[tuple[str, str, str]]:
    return [(one.severity, one.what, one.page) for one in found]


# Promise: TERM-1
def test_a_network_that_is_well_has_no_findings():
    rows = [{"service": "hello", "backends": 1, "slots": 1, "busy": 1, "waiting": 1}]
    ok = {**CHECK, "state": "ok"}
    assert findings(WELL, [], rows, [ok], [{**INCIDENT, "closed": 5.0}]) == []
    assert worst([]) == "ok"


def test_nobody_answers():
    (one,) = findings(None)
    assert (one.severity, one.what) == ("critical", "broker")
    assert "scale0 up" in one.next


def test_a_broker_that_does_not_serve_says_what_to_type():
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"draining": True}, "warning", "scale0 enable"),
        ({"state": "disabled"}, "critical", "scale0 enable"),
        ({"state": "joining"}, "warning", "scale0 peers"),
        ({"full": True}, "critical", "data_dir"),
        ({"full": True, "outage": {"since": 0.0, "reason": "no answer"}}, "critical", "the database"),
        ({"full": True, "outage": {"since": 0.0}}, "critical", "the database"),
        ({"error_clients": 2}, "warning", "error-clients forgive"),
    ]
    for state, severity, step in cases:
        (one,) = findings({**WELL, **state})
        assert one.severity == severity
        assert step in one.next


def test_a_full_disk_and_an_unavailable_database_are_told_apart():
    (disk,) = findings({**WELL, "full": True})
    (database,) = findings({**WELL, "full": True, "outage": {"since": 0.0, "reason": "no answer"}})
    assert (disk.what, database.what) == ("disk", "database")
    assert "database" not in disk.words + disk.next
    assert "disk" not in database.words + database.next
    assert "unavailable since 1970-01-01T00:00:00Z (no answer)" in database.words


def test_peers_that_are_lost_silent_or_behind():
    peers: list[dict[str, Any]] = [
        {"broker": "b2", "state": "lost", "age": 90.0, "config_version": 3},
        {"broker": "", "state": "unknown", "endpoint": "tcp://10.0.0.9:5702"},
        {"broker": "b3", "state": "active", "age": 0.1, "config_version": 2},
        {"broker": "b4", "state": "active", "age": 0.1, "config_version": 3},
    ]
    assert said(*findings(WELL, peers)) == [
        ("critical", "peer b2", "topology"),
        ("warning", "peer tcp://10.0.0.9:5702", "topology"),
        ("warning", "peer b3", "config"),
    ]


def test_services_without_workers_or_with_too_few():
    rows = [
        {"service": "gone", "backends": 0, "slots": 0, "busy": 0, "waiting": 1},
        {"service": "slow", "backends": 1, "slots": 1, "busy": 1, "waiting": 7},
        {"service": "bad", "backends": 1, "slots": 1, "busy": 0, "waiting": 0, "rates": {"failed_per_second": 3.0}},
    ]
    queues = [
        {"service": "late", "waiting": 1, "oldest_seconds": 9.0, "backends": 1},
        {"service": "kept", "waiting": 0, "oldest_seconds": None, "backends": 0, "tasks_queued": 4},
    ]
    found = findings(WELL, services=rows, queues=queues)
    assert [one.what for one in found] == ["service gone", "service slow", "service bad", "queue late", "queue kept"]
    assert found[0].words == "1 request waits for it, and no worker offers it"
    assert all(one.next for one in found)


def test_a_check_is_told_once_and_its_incident_tells_it():
    known = {**CHECK, "incident": "i-1"}
    assert said(*findings(WELL, checks=[known], incidents=[INCIDENT])) == [
        ("critical", "incident web-1 disk", "incidents")
    ]
    assert said(*findings(WELL, checks=[CHECK], incidents=[])) == [("critical", "check web-1 disk", "checks")]


def test_what_somebody_silenced_is_no_fault():
    quiet = {**CHECK, "incident": "i-1", "suppressed": ["silence move"]}
    found = findings(WELL, checks=[quiet], incidents=[INCIDENT])
    assert said(*found) == [("ok", "checks", "silences")]
    assert worst(found) == "ok"
    assert worst(findings(WELL, checks=[{**CHECK, "suppressed": ["flapping"]}])) == "critical"


def test_the_list_is_bounded_and_counts_the_rest():
    many = [{**CHECK, "agent": f"web-{number}"} for number in range(100)]
    found = findings(WELL, checks=many)
    assert len(found) == MAX_OF_A_KIND + 1
    assert found[-1].words == "95 more of this kind"


def test_parts_that_nobody_saw_are_unknown():
    seen = NetworkSnapshot(status=WELL, peers=[], services=[], silent=["h1"], watched=True)
    states = {part.part: part.state for part in parts(seen, found_in(seen))}
    assert states["broker"] == states["services"] == "ok"
    assert (states["agents"], states["checks"]) == ("critical", "unknown")
    alone = NetworkSnapshot(status=WELL, peers=[], services=[], watched=False)
    assert "no Helen" in next(part.words for part in parts(alone, []) if part.part == "agents")


def test_tasks_that_nobody_can_do_are_told_though_no_queue_holds_them():
    tasks = [{"method": "lonely"}, {"method": "lonely"}, {"method": "served"}, {"method": "held"}]
    found = found_in(
        NetworkSnapshot(
            status=WELL,
            services=[{"service": "served", "backends": 1}],
            queues=[{"service": "held", "tasks_queued": 1, "backends": 0}],
            tasks=tasks,
        )
    )
    assert [(one.what, one.page) for one in found] == [("queue held", "queues"), ("queue lonely", "tasks")]
    assert found[1].words == "2 tasks wait for it, and no worker offers it"
    many = found_in(NetworkSnapshot(status=WELL, services=[], tasks=[{"method": "lonely"}] * LOOK_TASKS))
    assert many[0].words.startswith(f"at least {LOOK_TASKS} tasks wait")
