"""Checks, handlers, downtimes and silences: read in every form, and checked against each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.config import (
    FORMATS,
    CheckDefinition,
    Downtime,
    Flapping,
    NetworkDocument,
    NotificationHandler,
    Silence,
    check_document,
    check_monitoring,
    monitoring,
    parse,
    patch,
    render,
)
from scale0.kernel.errors import ConfigError

PAGER = NotificationHandler(name="pager", type="webhook", url="https://h.example/x")
DISK = CheckDefinition(name="disk")

ZPL = b"""\
checks
    name = disk
    check = disk_free
    args
        path = /var
    interval = 30
    agents = web-*
    labels
        role = web
    thresholds
        used
            warn = 80
            crit = 90:95
    flapping
        formula = nagios
        start = 40
    depends_on = ping
    depends_on = router/ping
    handlers = pager
checks
    name = ping
handlers
    name = pager
    type = webhook
    url = https://h.example/x
    headers
        X-Key = abc
    states = critical
downtimes
    name = move
    starts = 1000
    ends = 2000.5
silences
    name = quiet
    checks = d*
"""


def test_a_document_as_people_write_it():
    document = parse(ZPL, "zpl", NetworkDocument)
    assert document.checks[0] == CheckDefinition(
        name="disk",
        check="disk_free",
        args={"path": "/var"},
        interval=30.0,
        agents=("web-*",),
        labels={"role": "web"},
        thresholds={"used": {"warn": 80, "crit": "90:95"}},
        flapping=Flapping(formula="nagios", start=40.0),
        depends_on=("ping", "router/ping"),
        handlers=("pager",),
    )
    assert document.handlers[0].headers == {"X-Key": "abc"}
    assert document.downtimes == (Downtime(name="move", starts=1000.0, ends=2000.5),)
    assert document.silences == (Silence(name="quiet", checks=("d*",)),)
    assert check_document(document) == []
    for form in FORMATS:
        assert parse(render(document, form), form, NetworkDocument) == document


# Promise: CONF-1, CONF-5
@pytest.mark.parametrize(
    ("key", "entry", "reason"),
    [
        ("checks", {"name": "a/b"}, "checks[0].name: must be 1 to 128 printable characters without spaces and /"),
        (
            "checks",
            {"name": "a", "intervall": 5},
            "checks[0].intervall: unknown key; the nearest known one is interval",
        ),
        ("checks", {"name": "a", "interval": 0}, "checks[0].interval: must be at least 0.1"),
        ("checks", {"name": "a", "timeout": 0}, "checks[0].timeout: must be more than 0"),
        ("checks", {"name": "a", "max_attempts": 0}, "checks[0].max_attempts: must be at least 1"),
        ("checks", {"name": "a", "args": []}, "checks[0].args: must be an object"),
        ("checks", {"name": "a", "thresholds": {"x": {"crit": "20:10"}}}, "checks[0].thresholds: must be limits by"),
        ("checks", {"name": "a", "thresholds": {"x": {"bad": 1}}}, "checks[0].thresholds: must be limits by metric"),
        ("checks", {"name": "a", "thresholds": {"x": {}}}, "checks[0].thresholds: must be limits by metric"),
        ("checks", {"name": "a", "thresholds": {"": {"warn": 1}}}, "checks[0].thresholds: must be limits by metric"),
        ("checks", {"name": "a", "thresholds": {"x": {"warn": True}}}, "checks[0].thresholds: must be limits by"),
        ("checks", {"name": "a", "thresholds": {"x": {"warn": -1}}}, "checks[0].thresholds: must be limits by"),
        ("checks", {"name": "a", "flapping": {"formula": "mine"}}, "checks[0].flapping.formula: must be one of"),
        ("checks", {"name": "a", "flapping": {"start": 101}}, "checks[0].flapping.start: must be at most 100"),
        ("checks", {"name": "a", "depends_on": ["a/b/c"]}, "checks[0].depends_on[0]: must be the name of a check"),
        ("checks", {"name": "a", "agents": ["a b"]}, "checks[0].agents[0]: must be a glob"),
        ("handlers", {"name": "a"}, "handlers[0]: type is missing"),
        ("handlers", {"name": "a", "type": "pigeon"}, "handlers[0].type: must be one of"),
        ("handlers", {"name": "a", "type": "webhook", "url": "file:///etc/passwd"}, "handlers[0].url: must be blank"),
        ("handlers", {"name": "a", "type": "webhook", "url": "http://a b/"}, "handlers[0].url: must be blank"),
        ("handlers", {"name": "a", "type": "webhook", "url": "http://a:65536/"}, "handlers[0].url: must be blank"),
        ("handlers", {"name": "a", "type": "email", "to": ["a@b\nBcc: c"]}, "handlers[0].to[0]: must be an e-mail"),
        (
            "handlers",
            {"name": "a", "type": "webhook", "headers": {"X": "a\r\nY: b"}},
            "handlers[0].headers.X: must be one",
        ),
        (
            "handlers",
            {"name": "a", "type": "webhook", "headers": {"X:": "a"}},
            "handlers[0].headers.X:: must be a letter",
        ),
        ("handlers", {"name": "a", "type": "command", "command": "rm -rf"}, "handlers[0].command: must be blank, or"),
        ("handlers", {"name": "a", "type": "task", "states": ["fine"]}, "handlers[0].states[0]: must be one of"),
        ("downtimes", {"name": "a", "starts": 1}, "downtimes[0]: ends is missing"),
        ("downtimes", {"name": "a", "starts": 1, "ends": 1e300}, "downtimes[0].ends: must be at most"),
        ("silences", {"name": "a", "until": 1}, "silences[0].until: unknown key"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(key, entry, reason):
    with pytest.raises(ConfigError) as caught:
        parse(json.dumps({key: [entry]}).encode(), "json", NetworkDocument)
    (found,) = caught.value.reasons
    assert found.split(": ", 1)[1].startswith(reason)


def check(name: str, *depends_on: str, agents: tuple[str, ...] = ()) -> CheckDefinition:
    return CheckDefinition(name=name, depends_on=depends_on, agents=agents)


def faults(*checks: CheckDefinition, **rest: Any) -> list[str]:
    given = {"handlers": (), "downtimes": (), "silences": (), **rest}
    return check_monitoring(checks, given["handlers"], given["downtimes"], given["silences"])


# Promise: CHECK-16
def test_names_are_there_once_and_what_is_named_is_there():
    assert faults(DISK, DISK) == ["checks: disk is listed more than once"]
    assert faults(CheckDefinition(name="a", handlers=("pager",))) == ["checks.a.handlers: there is no handler pager"]
    assert faults(CheckDefinition(name="a", handlers=("pager",)), handlers=(PAGER,)) == []
    assert faults(check("a", "b")) == ["checks.a.depends_on: there is no check b"]
    assert faults(check("a", "x/b")) == ["checks.a.depends_on: there is no check b"]


# Promise: CHECK-16
@pytest.mark.parametrize(
    "checks",
    [
        (check("a", "a"),),
        (check("a", "b"), check("b", "a")),
        (check("a", "b"), check("b", "c"), check("c", "a")),
        (check("a", "h/b"), check("b", "h/a")),
        (check("a", "h2/b", agents=("h1",)), check("b", "h1/a", agents=("h2",))),
    ],
)
def test_no_dependency_leads_back(checks):
    assert [fault for fault in faults(*checks) if "leads back" in fault]


@pytest.mark.parametrize(
    "checks",
    [
        (check("ping", "router/ping"),),
        (check("a", "c"), check("b", "c"), check("c")),
        (check("a", "b", "c"), check("b", "c"), check("c")),
        (check("a", "h2/b", agents=("h1",)), check("b", "h3/a", agents=("h2",))),
    ],
)
def test_a_dependency_that_does_not_lead_back_is_fine(checks):
    assert faults(*checks) == []


# Promise: CHECK-16
def test_a_handler_has_what_its_type_needs():
    for kind, needed in {"webhook": "url", "command": "command", "email": "to", "task": "method"}.items():
        handler = NotificationHandler(name="h", type=kind)  # type: ignore[arg-type]
        assert faults(handlers=(handler,)) == [f"handlers.h: a {kind} needs {needed}"]


# Promise: CHECK-16
def test_a_downtime_ends_after_its_start_and_flapping_below_its_start():
    assert faults(downtimes=(Downtime(name="d", starts=2.0, ends=2.0),)) == ["downtimes.d: starts is not before ends"]
    flapping = CheckDefinition(name="a", flapping=Flapping(start=20.0, end=30.0))
    assert faults(flapping) == ["checks.a.flapping: end is above start"]


def test_a_silence_and_a_downtime_are_added_and_removed_by_a_patch():
    document = NetworkDocument(checks=(DISK,))
    new = patch(document, {"silences.s": {"agents": ["web-*"]}, "downtimes.d": {"starts": 1, "ends": 2}})
    assert (new.silences[0].agents, new.downtimes[0].ends) == (("web-*",), 2.0)
    assert patch(new, {}, ["silences.s", "downtimes.d"]) == document
    with pytest.raises(ConfigError, match="there is no handler nobody"):
        patch(document, {"checks.disk.handlers": ["nobody"]})


# Promise: CHECK-16
def test_dependencies_of_a_large_document_are_followed_in_little_time(monkeypatch):
    looked_at = 0
    edges = monitoring._edges

    def counted(*given):
        nonlocal looked_at
        looked_at += 1
        return edges(*given)

    monkeypatch.setattr(monitoring, "_edges", counted)
    chain = [check(f"c{number}", f"a{number}/c{number + 1}", f"c{number + 1}") for number in range(100)]
    assert faults(*chain, check("c100")) == []
    assert looked_at < 10_000
    monkeypatch.setattr(monitoring, "MAX_DEPENDENCIES", 1_000)
    assert faults(*chain, check("c100")) == [
        "checks: more than 1000 dependencies of checks on agents, too many to check"
    ]
