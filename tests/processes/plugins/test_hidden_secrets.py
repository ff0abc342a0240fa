"""Real checks with a secret in their arguments: its content is in no finding and in no line of the log."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scale0.config.schema import Plugin
from scale0.kernel.edge.secret_files import SecretDirectory
from scale0.monitoring.agent.edge.lua_pool import LuaChecks
from scale0.monitoring.agent.edge.plugins import Plugins
from scale0.monitoring.agent.edge.running_checks import CheckRegistry, Inline, InProcess, InThread, RunningChecks
from scale0.monitoring.checks.registry import built_in
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS as MOST
from tests.processes.checks.servers import answer, page, tcp_server
from tests.processes.plugins.hostile_checks import open_folder

pytestmark = pytest.mark.processes

LUA = """return function(args) return {state = args.state or "ok", message = ("x"):rep(3990) .. args.pw,
    metrics = {{name = "user " .. args.pw, value = 1, unit = args.pw}, {name = "n", value = 2, unit = "s"}}} end"""


def run(folder: Path, name: str, content: str, /, *plugins: Plugin, **args: Any) -> CheckFinding:
    """One scheduled run of a check; its args refer to a secret with this content."""
    secrets = folder / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "pw").write_text(content)
    (secrets / "pw").chmod(0o600)

    async def once() -> CheckFinding:
        with closing(Plugins(plugins)) as own, closing(LuaChecks(folder)) as lua:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[CheckFinding] = loop.create_future()
            runs = RunningChecks(CheckRegistry(own, built_in(), lua).find, loop, 8, SecretDirectory(secrets))
            runs.start(name, json.dumps(args).encode(), 10.0, found.set_result, scheduled=True)
            return await found

    return asyncio.run(once())


# Promise: CHECK-19
@pytest.mark.parametrize("start", ["http://", "HTTP://"])
@pytest.mark.parametrize("path", ["/status?token=T0p5ecret", "/" + "T0p5ecret" * 40])
def test_http_shows_the_reference_in_place_of_its_url(tmp_path: Path, start: str, path: str):
    with tcp_server(page(answer(200, b"well"))) as port:
        found = run(tmp_path, "http", f"{start}127.0.0.1:{port}{path}", url="secret:pw", expect="T0p")
        assert found.state == CRITICAL
        assert found.message.replace("…", "") == "secret:pw does not have the text 'T0p'"
        assert found.metrics[0].name == "status"
    found = run(tmp_path, "http", f"{start}127.0.0.1:{port}{path}", url="secret:pw")
    assert found.message.replace("…", "").startswith("secret:pw: ")


# Promise: CHECK-19
@pytest.mark.parametrize("url", ["http://h:T0p5ec/", "ftp://T0p5ecret/", "http://T0p5ec\\:80", "HTTP://[T0p5ec/"])
def test_http_shows_nothing_of_a_url_that_is_none(tmp_path: Path, url: str):
    found = run(tmp_path, "http", url, url="secret:pw")
    assert (found.state, "T0p5ec" in found.message) in {(UNKNOWN, False), (CRITICAL, False)}


# Promise: CHECK-19
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("tcp", "host"), ("tls", "host"), ("dns", "name"), ("ntp", "server"), ("ping", "host"), ("file_age", "path"),
        ("log", "path"), ("process", "name"), ("memory", "warn"), ("http", "family"),
    ],
)  # fmt: skip
def test_built_in_checks_show_no_argument_that_is_a_secret(tmp_path: Path, name: str, argument: str):
    others: dict[str, dict[str, Any]] = {
        "tcp": {"port": 1},
        "tls": {"port": 1},
        "dns": {"server": "127.0.0.1", "port": 1},
        "log": {"match": ["x"]},
        "http": {"url": "http://127.0.0.1:1/"},
    }
    for content in ("hunter2\\x'", "hunter2" * 30):
        found = run(tmp_path, name, content, **others.get(name, {}), **{argument: "secret:pw"})
        assert "hunter2" not in found.message
        assert "unter2" not in repr(found.metrics)


# Promise: CHECK-19
def test_a_plugin_shows_the_reference_in_text_and_performance_data(tmp_path: Path):
    says = Plugin(name="says", command=("sh", "-c", """echo "OK - $1 | 'user $1'=1$1;2;3 n=4s" """, "sh", "{pw}"))
    found = run(tmp_path, "says", "hunter2", says, pw="secret:pw")
    assert found.message == "OK - secret:pw"
    assert [(metric.name, metric.unit) for metric in found.metrics] == [("user secret:pw", None), ("n", "s")]


# Promise: CHECK-19
def test_a_message_of_a_plugin_that_is_cut_in_a_secret_shows_no_part_of_it(tmp_path: Path):
    fills = "head -c 3985 /dev/zero | tr '\\0' x; echo \" login $1 failed\"; exit 2"
    found = run(
        tmp_path, "fill", "s3cr3t-horse-battery", Plugin(name="fill", command=("sh", "-c", fills, "sh", "{pw}")),
        pw="secret:pw",
    )  # fmt: skip
    assert (found.state, len(found.message)) == (CRITICAL, MOST)
    assert found.message.rstrip("x") == found.message
    assert "s3c" not in found.message


# Promise: CHECK-19
def test_a_secret_that_a_plugin_prints_as_a_python_literal_is_hidden(tmp_path: Path):
    code = "import sys; print('CRITICAL - bad argument %r' % sys.argv[1]); sys.exit(2)"
    found = run(
        tmp_path, "says", "hun\\ter\\2", Plugin(name="says", command=("python3", "-c", code, "{pw}")), pw="secret:pw"
    )
    assert found.message == "CRITICAL - bad argument 'secret:pw'"


# Promise: CHECK-19
def test_lua_shows_the_reference_in_text_names_units_and_states():
    content = "s3cr3t-horse-battery"
    with open_folder() as folder:
        (folder / "it.lua").write_text(LUA)
        found = run(folder, "it", content, pw="secret:pw")
        assert "s3c" not in found.message
        assert [(metric.name, metric.unit) for metric in found.metrics] == [("user secret:pw", None), ("n", "s")]
        (folder / "it.lua").write_text('return function(a) return {state = ("x"):rep(58) .. a.pw} end')
        assert "s3cr" not in run(folder, "it", content, pw="secret:pw").message
        (folder / "it.lua").write_text("return function(a) error({}, a.pw) end")
        assert "s3cr" not in run(folder, "it", content, pw="secret:pw").message


# Promise: CHECK-19
@pytest.mark.parametrize("kind", [Inline, InThread, InProcess])
def test_a_traceback_of_a_check_shows_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Any):
    (tmp_path / "pw").write_text("hunter2\\horse")
    (tmp_path / "pw").chmod(0o600)

    def fails(args: bytes, _: float) -> CheckFinding:
        raise KeyError(json.loads(args)["pw"])

    async def fails_later(args: bytes, timeout: float) -> CheckFinding:
        return fails(args, timeout)

    async def once() -> CheckFinding:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[CheckFinding] = loop.create_future()
        chosen = kind(fails_later if kind is InProcess else fails)
        runs = RunningChecks({"it": chosen}.get, loop, 8, SecretDirectory(tmp_path))
        runs.start("it", b'{"pw": "secret:pw"}', 10.0, found.set_result, scheduled=True)
        return await found

    with caplog.at_level(logging.DEBUG):
        finding = asyncio.run(once())
    assert finding.message == "the check failed: KeyError: 'secret:pw'"
    assert "KeyError: 'secret:pw'" in caplog.text
    assert "in fails" in caplog.text
    assert "hunter2" not in caplog.text
