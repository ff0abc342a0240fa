"""The registry: every event has one kind, a name by the rule, and the columns that its kind is promised to use."""

from __future__ import annotations

import re

import msgspec
import pytest

from scale0.history.events.audit import AUDIT_KINDS, link
from scale0.history.events.changes import ConfigChanged
from scale0.history.events.clients import ClientJoined
from scale0.history.events.columns import (
    COLUMN_NAMES,
    COLUMNS,
    METRIC_FIELDS,
    SCHEMA_VERSION,
    EventMetric,
    EventRow,
    clip_int,
)
from scale0.history.events.journal import Journal, read
from scale0.history.events.kinds import KINDS, NOUNS, by_kind
from scale0.history.events.requests import RequestFailed, RequestSummed
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from tests.unit.events.samples import SAMPLES

PROMISED = {
    *("broker.started", "broker.stopped", "broker.clock_suspect", "broker.state_changed"),
    *("source.alive", "source.clock_stepped", "peer.joined", "peer.lost"),
    *("client.joined", "client.changed", "client.left", "client.lost", "client.replaced"),
    *("client.seen", "client.refused"),
    *("request.summed", "request.failed"),
    *("config.changed", "config.conflict", "management.commanded", "key.changed"),
}


# Promise: JOUR-3
def test_every_promised_kind_exists():
    assert set(KINDS) >= PROMISED


def test_kinds_are_named_noun_past():
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", kind) for kind in KINDS)


def test_a_class_is_named_as_its_kind():
    for kind, event in KINDS.items():
        assert event.__name__ == "".join(word.capitalize() for word in re.split(r"[._]", kind))


def test_no_event_class_is_missing_in_the_registry():
    defined: set[type] = {
        thing
        for noun in NOUNS
        for thing in vars(noun).values()
        if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and hasattr(thing, "kind")
        if thing.__module__ == noun.__name__
    }
    assert defined == set[type](KINDS.values())


def test_two_events_of_one_kind_are_refused():
    with pytest.raises(ValueError, match=r"client\.joined"):
        by_kind([ClientJoined, ClientJoined])


def test_there_is_a_sample_of_every_kind():
    assert {event.kind for event, _ in SAMPLES} == set(KINDS)


# Promise: JOUR-3
@pytest.mark.parametrize(("event", "filled"), SAMPLES, ids=[event.kind for event, _ in SAMPLES])
def test_every_kind_comes_back_from_the_journal_in_its_columns(event, filled):
    entry = Journal("east-1", 5, 41, 0).append([event], Now(1.0, 100.0))
    assert entry is not None
    (row,) = read(entry.body)
    assert tuple(row) == COLUMN_NAMES
    empty = dict.fromkeys(COLUMN_NAMES)
    given = {"source": "east-1", "boot": 5, "seq": 41, "time": 100_000_000, "at": 100_000_000, "kind": event.kind}
    linked = {"data": link(filled.get("data"), "")} if event.kind in AUDIT_KINDS else {}
    assert row == {**empty, **given, **filled, **linked}


def test_every_event_can_be_recorded_in_a_step():
    step = Effects()
    for event, _ in SAMPLES:
        step.record(event)
    assert [event.kind for event in step.events] == [event.kind for event, _ in SAMPLES]


def test_a_version_too_large_for_its_column_is_exact_in_data():
    row = ConfigChanged(2**63, "bb", "aa", "west-1").row()
    assert row.code == 2**31 - 1
    assert row.data is not None
    assert row.data["version"] == 2**63


def test_what_is_empty_is_null():
    assert RequestFailed("echo", "r", "", 404, 0.1, "f").row().identity is None
    assert RequestSummed("echo", "w", 1, 0.1, 9, [(1, 1)]).row().data is None


# The one schema: the columns are those that segments and Spark are promised, in their order.


PROMISED_COLUMNS = [
    ("source", "string"),
    ("boot", "bigint"),
    ("seq", "bigint"),
    ("time", "timestamp_us"),
    ("at", "timestamp_us"),
    ("kind", "string"),
    ("identity", "string"),
    ("service", "string"),
    ("ref", "string"),
    ("attempt", "int"),
    ("code", "int"),
    ("state", "string"),
    ("seconds", "double"),
    ("waited", "double"),
    ("histogram", "histogram"),
    ("bytes", "bigint"),
    ("metrics", "metrics"),
    ("data", "string"),
]


# Promise: JOUR-3
def test_the_columns_are_the_promised_ones_in_order():
    assert [(column.name, column.type) for column in COLUMNS] == PROMISED_COLUMNS
    assert SCHEMA_VERSION == 1


def test_every_column_says_what_it_means():
    assert all(column.meaning for column in COLUMNS)


def test_an_event_fills_every_column_but_those_of_the_journal():
    own = {field.name for field in msgspec.structs.fields(EventRow)}
    assert own == set(COLUMN_NAMES) - {"source", "boot", "seq", "time"}


def test_a_metric_has_the_promised_fields():
    assert tuple(field.name for field in msgspec.structs.fields(EventMetric)) == tuple(
        name for name, _ in METRIC_FIELDS
    )


def test_a_number_beyond_32_bits_becomes_the_largest_that_fits():
    assert [clip_int(n) for n in (2**64, 2**31, 5, -(2**40))] == [2**31 - 1, 2**31 - 1, 5, -(2**31)]
