"""`scale0 doctor`, on a machine with faults that were planted, and beside a broker."""

# Promise: CLI-5
from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from scale0.broker.edge.key_folder import KeyFolder
from tests.fakes.shell import Shell

pytestmark = pytest.mark.processes


def by_probe(output: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(output):
        assert one.keys() == {"probe", "state", "words", "next"}
        found.setdefault(one["probe"], []).append(one)
    return found


def test_what_was_planted_is_found_and_said_how_to_mend(tmp_path):
    data_dir = tmp_path / "data"
    KeyFolder(data_dir).init()
    key = KeyFolder(data_dir).server_file
    key.chmod(0o644)
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens: no broker is there
        port, closed = taken.getsockname()[1], unused.getsockname()[1]
        config = tmp_path / "broker.json"
        config.write_text(json.dumps({"frontend_port": port, "data_dir": str(data_dir), "curve": True}))
        shell = Shell(tmp_path, PATH=str(tmp_path))
        shell.environment.pop("JAVA_HOME", None)
        words = ("doctor", "--config", str(config), "--join", f"127.0.0.1:{closed}")
        done = shell.run(*words, "--json")
    assert done.returncode == 1, done.stderr
    found = by_probe(done.stdout)
    [port_finding] = [one for one in found["ports"] if one["state"] == "fail"]
    assert f"{port} (frontend) is in use by " in port_finding["words"]
    [key_finding] = found["keys"]
    assert (key_finding["state"], key_finding["next"]) == ("fail", f"chmod 600 {key}")
    [java_finding] = found["java"]
    assert java_finding["state"] == "fail"
    assert f"{java} is Java 8" in java_finding["words"]
    assert [one["state"] for one in found["broker"]] == ["fail"]
    assert found["disk"][-1]["state"] != "fail"


def test_beside_a_broker_it_knows_what_time_it_is_there(broker, shell):
    done = shell.run("doctor", "--json")
    found = by_probe(done.stdout)
    [finding] = found["broker"]
    assert finding["state"] == "ok"
    assert " answers at 127.0.0.1:" in finding["words"]
    assert not [one for one in found["clock"] if one["state"] == "fail"]
    assert done.returncode == any(one["state"] == "fail" for some in found.values() for one in some)


def test_for_people_it_is_a_line_each_that_fits(tmp_path):
    done = Shell(tmp_path).run("doctor", "--data-dir", str(tmp_path / "none"))
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert {line.split()[0] for line in lines if line and not line.startswith(" ")} <= {
        *("ok", "warn", "fail"),
        *("Nothing", "All", "1", "2", "3"),
    }
    assert not (tmp_path / "none").exists(), "it changes nothing"
