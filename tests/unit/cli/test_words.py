"""What is typed becomes what is meant: addresses, arguments, times; which versions of the configuration lost."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from scale0.cli.common.connection import MAX_NETWORKS, client_id, state_folder
from scale0.cli.common.endpoints import backend_endpoints, endpoint_of, host_of
from scale0.cli.common.output import clean, csv_cell, span
from scale0.cli.network.call import arguments_of, parsed
from scale0.cli.network.config import lost_versions


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:5700"),
        ("broker.example.com:99", "tcp://broker.example.com:99"),
        ("tcp://10.0.0.1:5710", "tcp://10.0.0.1:5710"),
        ("[::1]:5", "tcp://[::1]:5"),
        ("::1", "tcp://[::1]:5700"),
        ("[fe80::1]", "tcp://[fe80::1]:5700"),
    ],
)
def test_an_address_takes_the_port_of_the_role_unless_it_names_one(text, endpoint):
    assert endpoint_of(text, 5700) == endpoint


@pytest.mark.parametrize(
    "text", ["", "a b", "host:", "host:0", "host:65536", "host:٣", "host:+5", "udp://x:1", "a:b:c"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError):
        endpoint_of(text, 5700)


def test_a_host_stands_without_brackets():
    assert host_of("tcp://[::1]:5700") == "::1"
    assert host_of("tcp://localhost:1") == "localhost"


def test_a_worker_takes_the_backend_port_wherever_its_host_comes_from():
    assert backend_endpoints(["a"], {"SCALE0_JOIN": "b"}) == ["tcp://a:5701"]
    assert backend_endpoints(["a", "b:7"], {}) == ["tcp://a:5701", "tcp://b:7"]
    assert backend_endpoints([], {"SCALE0_JOIN": "b:5710", "SCALE0_JOIN_BACKEND": "c:7"}) == ["tcp://c:7"]
    assert backend_endpoints([], {"SCALE0_JOIN": "b:5710"}) == ["tcp://b:5701"]
    assert backend_endpoints([], {"SCALE0_JOIN": "[::1]:5710"}) == ["tcp://[::1]:5701"]
    assert backend_endpoints([], {}) == []


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("5", 5),
        ('"5"', "5"),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ("cat.png", "cat.png"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("01", "01"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_word_is_json_if_it_can_be_and_else_text(word, value):
    assert parsed(word) == value


def test_names_go_by_name_and_the_rest_by_position():
    assert arguments_of(["1", "a=2", "x", 'b="c=d"']) == ([1, "x"], {"a": 2, "b": "c=d"})
    assert arguments_of(['"a=b"', "1=2", "=x"]) == (["a=b", "1=2", "=x"], {})


def test_a_name_that_is_given_twice_is_wrong_usage():
    with pytest.raises(click.UsageError, match="twice"):
        arguments_of(["a=1", "a=2"])


def test_text_from_elsewhere_cannot_command_a_terminal():
    assert clean("\x1b[2Jhi\n\tthere\x07") == "\\x1b[2Jhi\n\tthere\\x07"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59, "59 s"),
        (600, "10 min"),
        (86_400, "24 h"),
        (9e5, "10 d"),
    ],
)
def test_a_length_of_time_is_short(seconds, text):
    assert span(seconds) == text


def test_one_id_for_each_user_and_network_that_stays(tmp_path):
    first = client_id("tcp://a:1", tmp_path)
    assert client_id("tcp://a:1", tmp_path) == first
    assert client_id("tcp://b:1", tmp_path) != first
    assert (tmp_path / "clients.json").stat().st_mode & 0o077 == 0


def test_only_so_many_networks_are_remembered(tmp_path):
    (tmp_path / "clients.json").write_text(json.dumps({f"tcp://n:{i}": f"cli-{i}" for i in range(MAX_NETWORKS)}))
    client_id("tcp://new:1", tmp_path)
    known = json.loads((tmp_path / "clients.json").read_text())
    assert len(known) == MAX_NETWORKS
    assert "tcp://new:1" in known
    assert "tcp://n:0" not in known


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"tcp://a:1": 5}', '{"tcp://a:1": "not an id!"}'])
def test_a_broken_memory_costs_the_memory_and_not_the_command(tmp_path, content):
    (tmp_path / "clients.json").write_text(content)
    assert client_id("tcp://a:1", tmp_path) == client_id("tcp://a:1", tmp_path)


def test_a_memory_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert client_id("tcp://a:1", tmp_path / "file" / "folder").startswith("cli-")


def test_the_memory_lies_where_the_user_says():
    assert str(state_folder({"XDG_STATE_HOME": "/tmp/s", "HOME": "/h"})) == "/tmp/s/scale0"
    assert str(state_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"})) == "/h/.local/state/scale0"


def row(version: int, hash_: str, parent: str, current: bool = False) -> dict[str, Any]:
    return {"version": version, "hash": hash_, "parent": parent, "current": current}


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        ([], set()),
        ([row(2, "b", "a", True), row(1, "a", "")], set()),
        (
            [
                row(3, "c", "b", True),
                row(2, "x", "a"),
                row(2, "b", "a"),
                row(1, "a", ""),
            ],
            {"x"},
        ),
        (
            [
                row(4, "d", "c", True),
                row(3, "y", "x"),
                row(3, "c", "b"),
                row(2, "x", "a"),
                row(2, "b", "a"),
            ],
            {"x", "y"},
        ),
        ([row(3, "c", "b", True), row(2, "x", "a"), row(1, "a", "")], {"x"}),
        # A history that skipped versions cannot tell of what is older.
        ([row(9, "i", "h", True), row(5, "e", "d"), row(4, "d", "")], set()),
    ],
    ids=["none", "one line", "one lost", "two lost", "the winner's parent is not here", "skipped"],
)
def test_what_the_current_one_does_not_descend_from_has_lost(rows: list[dict[str, Any]], lost: set[str]):
    assert lost_versions(rows) == lost


@pytest.mark.parametrize("text", ["=1+1", "=cmd|'/C calc'!A0", "+a", "-a", "@SUM(A1)", "\t=1", "\r=1", "-5", "+1|x"])
def test_a_text_in_a_csv_file_is_no_formula(text):
    assert csv_cell(text) == "'" + text


@pytest.mark.parametrize("value", ["", "a=1", "1", -5, -0.5, None, True, "web-1", '{"a":1}'])
def test_numbers_and_other_texts_stay_as_they_are_in_a_csv_file(value):
    assert csv_cell(value) is value
