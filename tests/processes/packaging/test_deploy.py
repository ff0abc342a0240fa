"""The files for systemd, Kubernetes and containers: what they start is what the command line takes.

Promise: PACK-2
"""

from __future__ import annotations

import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from scale0.cli.main import cli
from scale0.config import BrokerConfig, parse
from tests.fakes.broker_process import ANY_PORTS
from tests.fakes.shell import Shell
from tests.processes.packaging.test_sockets import documented

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
KUBERNETES = "1.34"
PROGRAM = "/opt/scale0/bin/scale0"
NAME = "scale0"


ALL = [(path.name, one) for path in MANIFESTS for one in yaml.safe_load_all(path.read_text()) if one is not None]


def containers(node: Any) -> Iterator[dict[str, Any]]:
    """Every container of a manifest, those that begin included."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                yield from value
            else:
                yield from containers(value)
    elif isinstance(node, list):
        for one in node:
            yield from containers(one)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours, with the file that it stands in."""
    for path in UNITS:
        for line in re.findall(r"^Exec\w+=[-+!@]*(.+)$", path.read_text(), re.MULTILINE):
            if line.startswith(PROGRAM):
                yield path.name, shlex.split(line.replace("%i", "thumbs"))[1:]
    for name, one in ALL:
        for container in containers(one):
            if "command" not in container:
                yield name, container["args"]
            for words in (container.get("command", []), *probes(container)):
                if words[:1] == [NAME]:
                    yield name, words[1:]
                elif words[:1] == ["sh"]:
                    yield from (
                        (name, shlex.split(line))
                        for line in re.findall(r"scale0 ((?:helen|agent) .+?)(?: <|\n)", words[-1])
                    )
    for line in re.findall(
        r"^# +scale0 (.+)$", (DEPLOY / "kubernetes" / "secrets.example.yaml").read_text(), re.MULTILINE
    ):
        yield "secrets.example.yaml", shlex.split(line)


def probes(container: dict[str, Any]) -> list[list[str]]:
    found = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
    return [probe["exec"]["command"] for probe in found if "exec" in probe]


COMMANDS = list(commands())


@pytest.mark.parametrize(
    ("file", "words"), COMMANDS, ids=[f"{file}: {' '.join(words[:2])}" for file, words in COMMANDS]
)
def test_every_command_is_one_that_the_command_line_takes(file: str, words: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a token\n"))  # for `--token -`
    context = cli.make_context(NAME, list(words))
    while isinstance(context.command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None, f"{file}: there is no {name}"
        context = command.make_context(name, rest, parent=context)
    assert context.command is not cli


def test_every_kind_of_program_has_its_file() -> None:
    found = {words[0] for file, words in COMMANDS if file.endswith(".service") and words[0] != "reload"}
    assert found == {"broker", "worker", "helen", "agent"}
    assert {"broker", "worker", "helen", "agent", "services"} <= {
        words[0] for file, words in COMMANDS if ".yaml" in file
    }


@pytest.mark.parametrize(
    ("file", "resource"), ALL, ids=[f"{file}: {one['kind']} {one['metadata']['name']}" for file, one in ALL]
)
def test_every_manifest_is_what_kubernetes_allows(file: str, resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_manifests_belong_together() -> None:
    """What is mounted is there, and in one namespace; ports are those of the page; nobody is root who need not be."""
    named = {(one["kind"], one["metadata"]["name"]) for _, one in ALL}
    assert {one["metadata"].get("namespace", NAME) for _, one in ALL} == {NAME}
    text = "\n".join(path.read_text() for path in MANIFESTS)
    assert {("Secret", name) for name in re.findall(r"secretName: (\S+)", text)} <= named
    assert {("Service", name) for name in re.findall(r"serviceName: (\S+)", text)} <= named
    ports = {port for _, port in documented()["scale0 broker"] | documented()["scale0 helen"]}
    assert {int(port) for port in re.findall(r"[pP]ort: (\d+)", text)} == ports
    for name, one in ALL:
        for container in containers(one):
            confined = container["securityContext"]
            assert confined["allowPrivilegeEscalation"] is False, (name, container["name"])
            assert confined["capabilities"]["drop"] == ["ALL"], (name, container["name"])
            assert confined.get("runAsUser") != 0 or container["name"] == "folder"


def test_the_broker_s_file_in_its_secret_is_one_that_a_broker_takes() -> None:
    (secret,) = (one for _, one in ALL if one["metadata"]["name"] == "scale0-broker")
    config = parse(secret["stringData"]["broker.zpl"].encode(), "zpl", BrokerConfig)
    assert config.curve
    assert config.store.startswith("postgresql://")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_closed(path: Path) -> None:
    """By the words that systemd knows; systemd-analyze judges the rest, where it is installed (docs/deploy.md)."""
    text = path.read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "Restart": "always", "UMask": "0077"}
    assert {key: settings.get(key) for key in wanted} == wanted
    assert int(settings["LimitNOFILE"]) >= 65_536
    assert settings["StateDirectoryMode"] == "0700"
    assert "WatchdogSec" not in settings
    # Who says when it is ready is believed; who does not is not waited for.
    assert settings["Type"] == ("exec" if "agent" in path.name else "notify")


def test_the_image_is_made_of_the_wheel_and_runs_without_rights() -> None:
    lines = (DEPLOY / "container" / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("COPY ") and "--from" not in line] == [
        "COPY requirements-image.lock dist/scale0-*.whl /tmp/"
    ]
    assert "USER 10001:10001" in lines
    assert 'ENTRYPOINT ["scale0"]' in lines


def test_every_program_has_a_user_of_its_own() -> None:
    users = {}
    for path in UNITS:
        settings = dict(line.split("=", 1) for line in path.read_text().splitlines() if re.match(r"\w+=", line))
        assert settings["User"] == settings["Group"]
        users[path.stem.rstrip("@")] = settings["User"]
    assert users == {name: name for name in users}
    assert len(users) == 4
    made = (DEPLOY / "systemd" / "scale0.sysusers.conf").read_text().splitlines()
    assert {line.split()[1] for line in made if line.startswith("u ")} == set(users.values())


def test_the_image_installs_what_the_lock_names_with_hashes() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install [^&\n]+", text)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert installs[0].rstrip().endswith("-r /tmp/requirements-image.lock")
    assert "--no-deps" in installs[1]
    assert "--no-index" in installs[1]
    root = DEPLOY.parent
    blocks = re.split(r"\n(?=[a-z0-9])", (root / "requirements-image.lock").read_text())
    assert all("--hash=sha256:" in block for block in blocks)
    checked = subprocess.run(
        [sys.executable, root / "scripts" / "image-lock", "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.processes
def test_systemd_is_notified_when_a_broker_serves(tmp_path: Path) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(place))
        line.settimeout(30)
        shell = Shell(tmp_path, NOTIFY_SOCKET=str(place))
        with shell.background("broker", "--data-dir", "data", *ANY_PORTS) as broker:
            assert line.recv(100) == b"READY=1"
            broker.wait_for("ready ")


@pytest.mark.processes
def test_systemd_itself_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text().replace(PROGRAM, "/bin/true")
        (tmp_path / path.name.replace("@.", "@thumbs.")).write_text(text)
    units = [str(path) for path in tmp_path.iterdir()]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if NAME in line]
    assert (done.returncode, complaints) == (0, [])
