"""Our agent with a Helen of version 1 (PROTOCOL 10, FAULTS: agents)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.fakes.fake_helen import AgentConnection, FakeHelen
from tests.fakes.waiting import until
from tests.wire.monitoring.agent_under_test import AgentUnderTest, agent_under_test

pytestmark = pytest.mark.processes

MIB = 1_048_576
STATES = ("ok", "warning", "critical", "unknown")


@pytest.fixture(scope="module")
def agent_and_helen() -> Iterator[tuple[AgentUnderTest, FakeHelen]]:
    with agent_under_test() as (agent, [helen]):
        yield agent, helen


@pytest.fixture
def agent(agent_and_helen: tuple[AgentUnderTest, FakeHelen]) -> Iterator[AgentUnderTest]:
    yield agent_and_helen[0]
    assert agent_and_helen[0].running, agent_and_helen[0].log_text()


@pytest.fixture
def helen(agent_and_helen: tuple[AgentUnderTest, FakeHelen]) -> FakeHelen:
    return agent_and_helen[1]


@pytest.fixture
def connection(agent: AgentUnderTest, helen: FakeHelen) -> AgentConnection:
    """The agent's connection; a new one if a test ended it."""
    return agent.connected_to(helen)


# Promise: AGENT-3
def test_it_sends_hello_with_its_certificate_and_nothing_of_version_2_unaccepted(
    agent: AgentUnderTest, helen: FakeHelen
) -> None:
    connection = helen.accept()
    agent.connection = connection
    assert connection.common_name == "web-1"
    words = connection.line().split(b" ")
    assert len(words) == 3
    assert words[0] == b"hello"
    assert words[1] in (b"1", b"2")
    assert words[2].decode()
    assert connection.is_silent(0.5)


def test_a_lua_check_answers(connection: AgentConnection) -> None:
    before = time.time()
    result = connection.run("fine", {"any": ["thing"]})
    assert (result["state"], result["message"]) == ("ok", "fine")
    [metric] = result["metrics"]
    assert (metric["name"], metric["value"]) == ("n", 1)
    assert before - 5 < result["started"] < time.time() + 5
    assert 0 <= result["seconds"] < 5


@pytest.mark.parametrize("name", ["cpu", "memory", "load", "uptime"])
def test_a_built_in_check_answers_by_its_name(connection: AgentConnection, name: str) -> None:
    result = connection.run(name)
    assert result["state"] in STATES
    assert result["metrics"]
    assert all(metric["name"] and isinstance(metric["value"], int | float) for metric in result["metrics"])


def test_a_plugin_answers_with_its_text_and_metrics(connection: AgentConnection) -> None:
    result = connection.run("plain")
    assert result["state"] == "ok"
    assert "DISK OK - free" in result["message"]
    first = result["metrics"][0]
    assert (first["name"], first["value"], first["unit"]) == ("/", 2643, "MB")
    assert (first["warn"], first["crit"], first["min"], first["max"]) == (5948, 5958, 0, 5968)


@pytest.mark.parametrize(
    ("code", "state"), [(0, "ok"), (1, "warning"), (2, "critical"), (3, "unknown"), (9, "unknown")]
)
def test_the_exit_status_of_a_plugin_is_its_state(connection: AgentConnection, code: int, state: str) -> None:
    assert connection.run("state", {"code": code})["state"] == state


# Promise: CHECK-3
@pytest.mark.parametrize(
    "name",
    [
        "no-such-check",
        "../fine",
        "/bin/sh",
        "sh",
        "fine.lua",
        "./fine",
        "échec",
        "-",
        "*",
        "x" * 5_000,
        "$(id)",
        "__init__",
    ],
)
def test_a_check_that_is_not_allowed_is_unknown(connection: AgentConnection, name: str) -> None:
    result = connection.run(name, {})
    assert result["state"] == "unknown"
    assert result["message"]


# Promise: CHECK-3
@pytest.mark.parametrize(
    "value",
    [
        "; touch PLACE/shell",
        "$(touch PLACE/shell)",
        "`touch PLACE/shell`",
        "a b  c",
        "| touch PLACE/shell",
        "'\"\\",
        "*",
    ],
)
def test_args_never_reach_a_shell(agent: AgentUnderTest, connection: AgentConnection, value: str) -> None:
    value = value.replace("PLACE", str(agent.scratch))
    result = connection.run("word", {"value": value})
    assert result["state"] == "ok"
    # What is behind a bar is performance data, by the custom of plugins: not part of the message.
    assert result["message"] == f"got:{value}:".split("|")[0].strip()
    assert not (agent.scratch / "shell").exists()


# Promise: CHECK-3
def test_the_command_of_the_file_reaches_no_shell_either(agent: AgentUnderTest, connection: AgentConnection) -> None:
    result = connection.run("metas")
    assert result["state"] == "ok"
    assert "$HOME `id` $(id) ; touch" in result["message"]
    assert not (agent.scratch / "by-line").exists()
    assert not (agent.scratch / "by-redirect").exists()


@pytest.mark.parametrize("args", [{"value": ["a"]}, {"value": {"a": 1}}, {"other": 1}, [], 5, None, {"value": "a\nb"}])
def test_args_that_a_plugin_has_no_place_for_are_answered(connection: AgentConnection, args: object) -> None:
    result = connection.run("word", json.dumps(args).encode())
    assert result["state"] == "unknown"


@pytest.mark.parametrize("blob", [b"", b"not json", b"\xff\xfe", b'{"x": NaN}', b"[" * 100_000, b'{"x":1,"x":2}'])
def test_args_that_are_no_json_still_get_a_result(connection: AgentConnection, blob: bytes) -> None:
    number = connection.check("echo", blob)
    received = connection.result()
    assert received.number == number
    assert received.json["state"] in STATES


def test_results_come_when_they_are_ready_and_not_in_order(connection: AgentConnection) -> None:
    slow = connection.check("sleepy", {"seconds": "0.8"})
    quick = connection.check("fine")
    assert connection.result().number == quick
    assert connection.result().number == slow


def test_eight_checks_run_at_once(connection: AgentConnection) -> None:
    began = time.monotonic()
    asked = {connection.check("sleepy", {"seconds": "1"}) for _ in range(8)}
    received = [connection.result() for _ in range(8)]
    took = time.monotonic() - began
    assert {message.number for message in received} == asked
    assert {message.json["state"] for message in received} == {"ok"}
    assert took < 3, f"8 checks of 1 s took {took:.1f} s"


# Promise: AGENT-4
def test_a_hundred_checks_are_answered_once_each(connection: AgentConnection) -> None:
    connection.send(b"".join(b'check echo %d 9\n{"x":%3d}\n' % (1_000 + n, n) for n in range(100)))
    received = [connection.result() for _ in range(100)]
    assert {message.number: message.json["message"] for message in received} == {1_000 + n: str(n) for n in range(100)}
    assert connection.is_silent()


def test_any_message_id_comes_back_as_it_went(connection: AgentConnection) -> None:
    for number in (0, 2_147_483_647):
        connection.check("fine", number=number)
        received = connection.result()
        assert received.words[1] == b"%d" % number


def test_a_message_id_is_one_check_and_one_result(connection: AgentConnection) -> None:
    """FAULTS: one check per message id, one result per check; said twice while it runs, it is still one."""
    connection.check("sleepy", {"seconds": "0.3"}, number=600_007)
    connection.check("sleepy", {"seconds": "0.3"}, number=600_007)
    assert connection.result().number == 600_007
    assert connection.is_silent(0.6)
    assert connection.run("fine")["state"] == "ok"


# Promise: CHECK-1
@pytest.mark.slow
def test_what_never_ends_is_ended_and_says_so(agent: AgentUnderTest, connection: AgentConnection) -> None:
    """All at once: each has its own timeout (2 s here), and none keeps another from answering."""
    began = time.monotonic()
    asked = {connection.check(name, args): name for name, args in
             (("spins", {}), ("eats", {}), ("pattern", {}), ("deaf", {}), ("sleepy", {"seconds": "60"}))}  # fmt: skip
    received = {asked[message.number]: message.json for message in (connection.result() for _ in asked)}
    took = time.monotonic() - began
    assert {name: result["state"] for name, result in received.items()} == dict.fromkeys(asked.values(), "unknown")
    assert all(result["message"] for result in received.values())
    assert took < 6, f"a timeout of 2 s took {took:.1f} s"
    until(lambda: not left_over("sleep 60"))


def left_over(words: str) -> list[int]:
    """Processes whose command line is this."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    data = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if data == words or data == f"/bin/{words}":
                found.append(int(entry))
    return found


# Promise: CHECK-2
def test_what_a_plugin_left_behind_does_not_survive_it(agent: AgentUnderTest, connection: AgentConnection) -> None:
    connection.run("leaves")
    left = int((agent.scratch / "left").read_text())
    until(lambda: not os.path.exists(f"/proc/{left}"))


@pytest.mark.parametrize("name", ["broken", "nonsense", "nothing", "missing", "dies", "binary"])
def test_a_check_that_crashes_says_so(connection: AgentConnection, name: str) -> None:
    result = connection.run(name)
    assert result["state"] == ("ok" if name == "binary" else "unknown")
    assert result["message"]


# Promise: CHECK-2
def test_a_plugin_that_prints_without_end_is_bounded(connection: AgentConnection) -> None:
    number = connection.check("chatty")
    received = connection.result()
    assert received.number == number
    assert len(received.blob) <= MIB
    assert received.json["state"] in STATES


# Promise: CHECK-4
def test_lua_sees_no_way_out(connection: AgentConnection) -> None:
    seen, host = connection.run("sees")["message"].split("|")
    assert (seen, host) == ("load", "table") or (seen, host) == ("", "table")


def test_args_of_a_whole_mebibyte_are_accepted(connection: AgentConnection) -> None:
    blob = b'{"x": "%s"}' % (b"a" * (MIB - len(b'{"x": ""}')))
    assert len(blob) == MIB
    number = connection.check("echo", blob)
    received = connection.result()
    assert received.number == number
    assert received.json["state"] in STATES
    assert connection.run("fine")["state"] == "ok"


# Promise: AGENT-1
def test_bytes_may_come_one_at_a_time_and_lines_end_in_crlf(connection: AgentConnection) -> None:
    for byte in b'check echo 500077 9\r\n{"x":"y"}\n':
        connection.send(bytes([byte]))
    received = connection.result()
    assert received.number == 500_077
    assert received.json["message"] == "y"


@pytest.mark.parametrize(
    "data", [b"frobnicate 1 2 3\n", b"ACCEPTED 30\n", b"hello 1 x\n", b"result\n", b"\n", b"x" * 8_192 + b"\n"]
)
def test_a_command_that_it_does_not_know_is_logged_and_ignored(
    agent: AgentUnderTest, connection: AgentConnection, data: bytes
) -> None:
    connection.send(data)
    assert connection.run("cpu")["state"] in STATES
    assert data.split()[0][:20].decode() in agent.log_text() if data.strip() else True


@pytest.mark.parametrize("data", [b"\xff\n", b"check cpu 1 1048577\n"])
def test_a_helen_that_cannot_spell_is_left_and_found_again(
    agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection, data: bytes
) -> None:
    """She never should, says the note; so nothing says what to do but that the agent must live."""
    connection.send(data)
    if connection.is_closed():
        agent.restart()
    assert agent.connected_to(helen).run("cpu")["state"] in STATES


def test_reload_brings_changed_lua(agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection) -> None:
    """Equus may restart for it: the connection may be another."""
    (agent.checks_dir / "young.lua").write_text('return function(args) return {state = "ok", message = "new"} end')
    (agent.checks_dir / "fine.lua").write_text('return function(args) return {state = "ok", message = "changed"} end')
    connection.send(b"reload\n")
    time.sleep(0.3)  # nothing on the wire says that a reload is over
    connection = agent.connected_to(helen)
    assert connection.run("young")["message"] == "new"
    assert connection.run("fine")["message"] == "changed"


# Promise: AGENT-13
def test_after_an_error_it_logs_goes_and_comes_back(
    agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection
) -> None:
    connection.send("error you did something wröng, twice\n".encode())
    assert connection.read_to_end() == b""
    began = time.monotonic()
    connection = agent.connected_to(helen)
    assert time.monotonic() - began < 10
    assert "you did something wröng, twice" in agent.log_text()
    assert "next attempt in" in agent.log_text()
    assert connection.run("cpu")["state"] in STATES


def test_a_connection_that_breaks_is_made_again(
    agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection
) -> None:
    connection.check("sleepy", {"seconds": "0.5"})
    agent.disconnect()
    connection = agent.connected_to(helen)
    assert connection.is_silent(1), "a result of the old connection was sent on the new one"
    assert connection.run("cpu")["state"] in STATES
