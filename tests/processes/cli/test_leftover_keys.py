"""Key files that an earlier network left in the user's folder: `scale0 up` works beside them, and every error names the
file and what to do with it."""

# Promise: CURVE-20
from __future__ import annotations

import json
from pathlib import Path

import pytest

from scale0.transport.edge.curve_certificates import new_certificate, text_of
from tests.fakes.shell import Shell
from tests.processes.cli.test_monitoring import free_block

pytestmark = pytest.mark.processes

OUTDATED = "outdated"
KINDS = (OUTDATED, "no server key", "bad server key", "damaged", "readable")


def leave_key(home: Path, port: int, kind: str, socket: str = "frontend") -> Path:
    """A key file for an address, as an earlier network left it, or as something has damaged it since."""
    metadata = {"name": "vm", "role": socket, "endpoint": f"tcp://127.0.0.1:{port}"}
    if kind == "bad server key":
        metadata["server-key"] = "cut off"
    elif kind != "no server key":
        metadata["server-key"] = new_certificate().public
    path = home / "scale0" / "keys" / f"{socket}-127.0.0.1-{port}.key_secret"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(
        "metadata\n  nonsense" if kind == "damaged" else text_of(new_certificate(**metadata), with_secret=True)
    )
    path.chmod(0o644 if kind == "readable" else 0o600)
    return path


def shell_with(folder: Path, port: int) -> Shell:
    joins = {"SCALE0_JOIN": f"127.0.0.1:{port}", "SCALE0_JOIN_BACKEND": f"127.0.0.1:{port + 1}"}
    return Shell(folder, XDG_CONFIG_HOME=str(folder / "config"), **joins)


@pytest.mark.parametrize("kind", KINDS)
def test_up_and_its_programs_work_beside_a_leftover_key(tmp_path, kind):
    port = free_block()
    shell = shell_with(tmp_path, port)
    for place, name in enumerate(("frontend", "backend")):
        leave_key(tmp_path / "config", port + place, kind, name)
    with shell.background("up", "--port", str(port)) as up:
        up.wait_for("Helen monitors this machine")
        assert any(row["service"] == "helen.check" for row in shell.json("services"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != OUTDATED])
def test_doctor_sees_a_key_file_that_cannot_be_used(tmp_path, kind):
    port = free_block()
    path = leave_key(tmp_path / "config", port, kind)
    done = shell_with(tmp_path, port).run("doctor", "--json")
    [found] = [one for one in json.loads(done.stdout) if one["probe"] == "keys" and one["state"] == "fail"]
    assert str(path) in found["words"]
    assert str(path) in found["next"]


def test_doctor_sees_a_key_for_a_network_that_is_unencrypted(broker, tmp_path):
    shell = Shell(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"), SCALE0_JOIN=broker.address())
    path = leave_key(tmp_path / "config", int(broker.address().rpartition(":")[2]), OUTDATED)
    done = shell.run("doctor", "--json")
    [found] = [one for one in json.loads(done.stdout) if one["probe"] == "broker"]
    assert found["state"] == "fail"
    assert str(path) in found["words"] + found["next"]
