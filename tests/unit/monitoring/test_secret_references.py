"""Secrets by reference: the document names a file, and its content appears nowhere."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scale0.config import CheckDefinition, ClientConfig, HelenConfig, NotificationHandler
from scale0.config.monitoring import check_monitoring
from scale0.kernel.clock import Now
from scale0.kernel.edge.secret_files import MAX_SECRET_BYTES, SecretDirectory, SecretUnavailable
from scale0.monitoring.agent.core.check_schedule import CheckSchedule
from scale0.monitoring.agent.edge.running_checks import Inline, InThread, RunningChecks
from scale0.monitoring.helen.core.check_rules import CheckRules
from scale0.monitoring.helen.core.socket_events import ConfigReceived, read_config
from scale0.monitoring.helen.edge.notifier import NotificationFailed, Notifier
from scale0.monitoring.protocol.results import OK, UNKNOWN, CheckFinding
from tests.fakes.waiting import eventually

SECRET = "s3cr3t-value"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "secrets"
    found.mkdir(mode=0o700)
    write(found / "token", SECRET + "\n")
    return found


def write(path: Path, content: str, mode: int = 0o600) -> None:
    path.write_text(content)
    path.chmod(mode)


# Promise: CHECK-19
@pytest.mark.parametrize("name", ["../token", "a/b", ".hidden", "", "x" * 129, "a b", "a\n"])
def test_a_reference_is_a_name_without_a_path(name: str):
    hook = NotificationHandler(name="h", type="webhook", url="http://h/", headers={"X": f"secret:{name}"})
    check = CheckDefinition(name="c", args={"password": f"secret:{name}"})
    errors = check_monitoring((check,), (hook,), (), ())
    assert [error.partition(": ")[0] for error in errors] == ["checks.c.args.password", "handlers.h.headers.X"]


# Promise: CHECK-19
def test_a_url_may_be_a_reference_and_nothing_else_that_is_no_url():
    text = '{"handlers": [{"name": "h", "type": "webhook", "url": "%s"}]}'
    assert decode(text % "secret:hook").handlers[0].url == "secret:hook"
    for wrong in ("secret:../x", "secret:", "secrets:x", "file:x"):
        with pytest.raises(ValueError, match="url"):
            decode(text % wrong)


def decode(text: str) -> ClientConfig:
    event = read_config(text.encode())
    if not isinstance(event, ConfigReceived):
        raise ValueError(event.error)
    return event.config


# Promise: CHECK-19
@pytest.mark.parametrize(
    ("name", "content", "mode", "reason"),
    [
        ("missing", None, 0, "does not exist"),
        ("open", "x", 0o604, "mode 604"),
        ("writable", "x", 0o620, "mode 620"),
        ("long", "x" * (MAX_SECRET_BYTES + 1), 0o600, "more than"),
        ("empty", "\n", 0o600, "empty"),
        ("lines", "a\nb\n", 0o600, "one line"),
    ],
)
def test_an_error_names_the_machine_and_the_file_and_never_the_content(folder, name, content, mode, reason):
    if content is not None:
        write(folder / name, content, mode)
    with pytest.raises(SecretUnavailable) as found:
        SecretDirectory(folder).read(name)
    text = str(found.value)
    assert text.startswith(f"{os.uname().nodename}: the secret file {folder / name} ")
    assert reason in text


# Promise: CHECK-19
def test_a_folder_is_no_secret(folder: Path):
    (folder / "sub").mkdir()
    with pytest.raises(SecretUnavailable, match="not a file"):
        SecretDirectory(folder).read("sub")


async def run(folder: Path, args: dict[str, Any], trusted: bool = True, thread: bool = False) -> CheckFinding:
    found: list[CheckFinding] = []
    kind = InThread if thread else Inline
    echo = kind(lambda args, _timeout: CheckFinding(OK, args.decode()))
    runs = RunningChecks({"echo": echo}.get, asyncio.get_running_loop(), 8, SecretDirectory(folder))
    runs.start("echo", json.dumps(args).encode(), 5.0, found.append, trusted)
    await eventually(lambda: found)
    return found[0]


# Promise: CHECK-19
@pytest.mark.parametrize("thread", [False, True])
async def test_a_check_gets_the_content_and_its_result_hides_it(folder: Path, thread: bool):
    lengths: list[int] = []
    finding = await run(folder, {"password": "secret:token", "port": 5}, thread=thread)
    assert json.loads(finding.message) == {"password": "secret:token", "port": 5}

    def measure(args: bytes, _: object) -> CheckFinding:
        lengths.append(len(json.loads(args)["p"]))
        return CheckFinding(OK, "measured")

    runs = RunningChecks(
        {"len": Inline(measure)}.get,
        asyncio.get_running_loop(),
        8,
        SecretDirectory(folder),
    )
    runs.start("len", b'{"p": "secret:token"}', 5.0, lambda _: None, True)
    assert lengths == [len(SECRET)]


# Promise: CHECK-19
async def test_a_missing_file_is_unknown_and_named(folder: Path):
    finding = await run(folder, {"password": "secret:missing"})
    assert finding.state == UNKNOWN
    assert f"{os.uname().nodename}: the secret file {folder / 'missing'} does not exist" in finding.message


# Promise: CHECK-19
async def test_a_check_that_is_not_in_the_schedule_gets_no_secret(folder: Path):
    finding = await run(folder, {"url": "http://elsewhere/", "header": "secret:token"}, trusted=False)
    assert (finding.state, SECRET in finding.message) == (UNKNOWN, False)
    assert "only a check of the schedule" in finding.message


def deliver(handler: NotificationHandler, folder: Path) -> str:
    config = HelenConfig(identity="h", certificate="c", private_key="k", client_ca="a", secrets_dir=str(folder))
    notifier = Notifier(config)
    try:
        return asyncio.run(notifier.deliver(handler, {"id": "n-1"}))
    finally:
        notifier.close()


# Promise: CHECK-19
@pytest.mark.parametrize(
    ("content", "reason"),
    [("http://127.0.0.1:1/s3cr3t-path", "^secret:hook: ConnectionRefusedError$"), ("ftp://s3cr3t/", "no http")],
)
def test_an_error_of_a_webhook_shows_nothing_of_its_url(folder: Path, content: str, reason: str):
    write(folder / "hook", content)
    with pytest.raises(NotificationFailed, match=reason) as failed:
        deliver(NotificationHandler(name="h", type="webhook", url="secret:hook"), folder)
    assert "s3cr3t" not in str(failed.value)
    assert "127.0.0.1" not in str(failed.value)


# Promise: CHECK-19
@pytest.mark.parametrize("host", ["s3cr3t host", "s3cr3t" * 20, "s3cr3t.\u00e9"])
def test_a_host_that_the_http_library_refuses_is_not_shown(folder: Path, host: str):
    write(folder / "hook", f"http://{host}:1/")
    with pytest.raises(NotificationFailed, match=r"^secret:hook: \w+$") as failed:
        deliver(NotificationHandler(name="h", type="webhook", url="secret:hook"), folder)
    assert failed.value.again
    assert "s3cr3t" not in str(failed.value)


# Promise: CHECK-19
def test_a_webhook_without_its_file_is_repeated_and_names_it(folder: Path):
    hook = NotificationHandler(name="h", type="webhook", url="http://127.0.0.1:1/", headers={"X": "secret:missing"})
    with pytest.raises(NotificationFailed, match=f"the secret file {folder / 'missing'} does not exist") as failed:
        deliver(hook, folder)
    assert failed.value.again


# Promise: CHECK-19
def test_a_recheck_has_the_arguments_of_the_schedule():
    given = CheckDefinition(name="db", check="http", args={"z": "secret:token", "a": [1.5, "ü"]})
    rules = CheckRules.of(ClientConfig(checks=(given,)))
    selected = rules.select("web-1", {})
    schedule = CheckSchedule("web-1")
    assert schedule.replace(rules.schedule(selected), Now(0.0, 0.0)) == []
    args = selected["db"].args_json()
    assert schedule.has("http", args)
    assert not schedule.has("tcp", args)
    assert not schedule.has("http", args.replace(b"1.5", b"1.6"))
