"""What monitoring commands make of answers and of words, without a network."""

from __future__ import annotations

import time
from typing import Any

import click
import pytest

from scale0.cli.common import errors, output
from scale0.cli.monitoring import check_test, helens, listing, silences
from scale0.cli.network import document_entries
from scale0.client.admin.rows import entry_path, is_over, known_agents
from scale0.errors import NoAnswer

NOW = 1_800_000_000.0
ask: Any = helens.ask
"""With a fake client."""


class Asked:
    """A network of Helens by name, each with the rows of one view, or dead."""

    def __init__(self, **known: list[str] | None) -> None:
        self.known = known
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def services(self) -> list[dict[str, Any]]:
        own = [{"service": f"helen.{name}.agents", "backends": 1} for name in self.known]
        return [*own, {"service": "helen.agents", "backends": 2}, {"service": "helen.old.agents", "backends": 0}]

    def call(self, service: str, **asked: Any) -> dict[str, Any]:
        limit, after = asked["limit"], asked.get("after", "")
        self.calls.append((service, {"limit": limit, "after": after}))
        rows = self.known[service.split(".")[1]]
        if rows is None:
            raise NoAnswer(504, "no answer", service)
        found = [row for row in rows if row > after]
        return {
            "items": [{"agent": row} for row in found[:limit]],
            "next": found[limit - 1] if len(found) > limit else None,
        }


def test_every_page_of_every_helen_is_asked_for():
    many = [f"a{number:04}" for number in range(2_500)]
    net = Asked(one=many, two=["b"])
    answer = ask(net, "agents", {})
    assert [(row["agent"], row["helen"]) for row in answer.rows] == [*((name, "one") for name in many), ("b", "two")]
    assert [call[1]["after"] for call in net.calls] == ["", "a0999", "a1999", ""]
    assert len(ask(net, "agents", {}, 1_200).rows) == 1_201, "so many of each"


def test_a_silent_helen_is_named_and_does_not_hide_the_others():
    answer = ask(Asked(one=["a"], two=None), "agents", {})
    assert ([row["agent"] for row in answer.rows], answer.silent) == (["a"], ["two"])
    with pytest.raises(errors.CommandError, match="two does not answer"):
        ask(Asked(two=None), "agents", {})
    with pytest.raises(errors.CommandError, match="no Helen is connected"):
        ask(Asked(), "agents", {})


def test_an_agent_that_two_helens_know_is_shown_once():
    rows: list[dict[str, Any]] = [
        {"agent": "a", "state": "away", "left": 5.0, "helen": "one"},
        {"agent": "a", "state": "connected", "helen": "two"},
        {"agent": "b", "state": "away", "left": 9.0, "helen": "one"},
        {"agent": "b", "state": "away", "left": 7.0, "helen": "two"},
    ]
    best = known_agents(rows)
    assert [(row["agent"], row["helen"]) for row in best] == [("a", "two"), ("b", "one")]


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "ok"),
        ({"state": "critical", "hard": False, "attempt": 2}, "critical (try 2 of 3)"),
        (
            {"state": "critical", "suppressed": ["silence a b", "silence c", "downtime d"]},
            "critical (silenced, downtime)",
        ),
        ({"state": "unknown", "flapping": True, "suppressed": ["flapping"]}, "unknown (flapping)"),
        ({"state": "warning", "suppressed": ["depends_on gate"], "stale": True}, "warning (dependency, stale)"),
    ],
)
def test_a_state_says_what_there_is_to_know_of_it(more, shown):
    base = {"agent": "a", "check": "c", "state": "ok", "hard": True, "attempt": 0, "max_attempts": 3}
    row = {**base, "flapping": False, "suppressed": [], "stale": False, **more}
    assert listing.row_head(row) == ("a", "c", shown)


@pytest.mark.parametrize(
    ("row", "shown", "over"),
    [
        ({"ends": 0}, "until it is ended", False),
        ({"ends": NOW + 1_800}, "30 min left", False),
        ({"ends": NOW - 1}, "over", True),
        ({"starts": NOW + 1_800, "ends": NOW + 9_000}, "in 30 min, 2 h", False),
    ],
)
def test_an_entry_says_how_long_it_holds(row, shown, over):
    assert (silences.state_of(row, NOW), is_over(row, NOW)) == (shown, over)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400)])
def test_a_length_of_time_as_it_is_typed(text, seconds):
    assert silences.DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "٣", "1_0", "1.5h", "h", "367d", "2w", "2y"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(click.BadParameter, match="is not a duration"):
        silences.DurationType().convert(text, None, None)


def test_a_moment_is_this_machines_unless_it_says_another():
    assert silences.TimeType().convert("2026-05-01T22:00+00:00", None, None) == 1_777_672_800
    local = time.mktime((2026, 5, 1, 22, 0, 0, 0, 0, -1))
    assert silences.TimeType().convert("2026-05-01T22:00", None, None) == local
    for text in ("yesterday", "", "2026-13-01"):
        with pytest.raises(click.BadParameter, match="is not a time"):
            silences.TimeType().convert(text, None, None)


def test_a_path_holds_any_name():
    assert entry_path("checks", "a.b") == "checks.[a.b]"
    assert entry_path("checks", "a]b", "handlers") == "checks.[a]]b].handlers"


def test_a_glob_stays_text_and_an_argument_is_json_if_it_can_be():
    assert document_entries.texts(["a=5", "b=x=y"], "--label") == {"a": "5", "b": "x=y"}
    assert document_entries.pairs(["a=5", "b=x=y"], "--arg") == {"a": 5, "b": "x=y"}
    for words in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(click.UsageError):
            document_entries.texts(words, "--label")


def test_a_table_that_is_no_terminals_fits_80_columns(capsys):
    output.table(("NAME", "MESSAGE"), [("a", "m" * 100), ("b", "short")], cut="MESSAGE")
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [13, 80, 11]
    assert lines[1].endswith("m…")
    output.table(("NAME", "MESSAGE"), [("a" * 70, "m" * 100)], cut="MESSAGE")
    assert capsys.readouterr().out.splitlines()[1].endswith(" " + "m" * (output.MIN_CUT - 1) + "…"), "something is left"


def test_a_result_shows_only_columns_that_somebody_fills(capsys):
    metrics = [{"name": "a", "value": 12_345_678_901.0, "warn": None}, {"name": "b", "value": 0.5, "unit": "s"}]
    check_test.show_result({"state": "ok", "message": "fine\x1b[2J", "metrics": metrics, "seconds": 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok: fine\\x1b[2J  (0.500 s)"
    assert [line.split() for line in lines[2:]] == [
        ["METRIC", "VALUE", "UNIT"],
        ["a", "12345678901", "-"],
        ["b", "0.5", "s"],
    ]
