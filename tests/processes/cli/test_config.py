"""`scale0 config`: what is right, what is wrong and where, and what the network has."""

from __future__ import annotations

import json

import pytest

from scale0.config import NetworkDocument, parse
from tests.fakes.shell import EXAMPLES, Shell, manager_of

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("form", ["zpl", "json", "xml"])
def test_the_example_is_right_in_each_form(tmp_path, form):
    done = Shell(tmp_path).run("config", "check", str(EXAMPLES / f"broker.{form}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"valid broker configuration ({form.upper()})\n")


def test_every_reason_is_given_with_its_line(tmp_path):
    (tmp_path / "b.zpl").write_text("identity = a\nfrontend_prt = 1\nbackend_port = x\nstate = asleep\n")
    done = Shell(tmp_path).run("config", "check", "b.zpl")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(f"b.zpl: line {number}" in line for number, line in zip((2, 3, 4), sorted(lines), strict=True))
    assert "frontend_port" in done.stdout
    assert "3 problems" in done.stderr


def test_reasons_as_json(tmp_path):
    (tmp_path / "b.json").write_text('{"bind": "0.0.0.0", "curve": false}')
    done = Shell(tmp_path).run("config", "check", "b.json", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert {key: found[key] for key in ("file", "kind", "valid")} == {
        "file": "b.json",
        "kind": "broker",
        "valid": False,
    }
    assert "not loopback" in found["reasons"][0]


@pytest.mark.parametrize("name", ["missing.json", "broker.yaml", "folder.json"])
def test_what_cannot_be_read_is_wrong_usage(tmp_path, name):
    (tmp_path / "folder.json").mkdir()
    Shell(tmp_path).refuses("config", "check", name, status=2)


def test_other_kinds_of_files_are_checked_by_their_own_rules(tmp_path):
    (tmp_path / "n.json").write_text('{"network": "shop", "version": 3}')
    shell = Shell(tmp_path)
    assert shell.run("config", "check", "n.json", "--as", "network").returncode == 0
    assert shell.run("config", "check", "n.json", "--as", "client").returncode == 1


def test_the_networks_document_is_shown_in_each_form_and_in_history(broker, tmp_path):
    shell = manager_of(broker, tmp_path)
    shown = shell.json("config", "show")
    assert set(shown) == {"version", "hash", "config"}
    documents = [
        parse(shell.run("config", "show", "--form", form).stdout.encode(), form, NetworkDocument)
        for form in ("json", "xml", "zpl")
    ]
    assert documents[0] == documents[1] == documents[2]
    assert documents[0].version == shown["version"]
    [row] = shell.json("config", "history")
    assert set(row) == {"version", "hash", "parent", "time", "author", "current"}
    assert (row["hash"], row["current"]) == (shown["hash"], True)
    assert "current" in shell.run("config", "history").stdout
