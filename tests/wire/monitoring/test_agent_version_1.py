"""Our agent with a Helen of version 1 (PROTOCOL 10, FAULTS: agents)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.fakes.waiting import until
from tests.wire.monitoring.agent_process import House, house
from tests.wire.monitoring.helen_1 import Helen1, Line

pytestmark = pytest.mark.processes

MIB = 1_048_576
STATES = ("ok", "warning", "critical", "unknown")


@pytest.fixture(scope="module")
def agent_and_helen() -> Iterator[tuple[House, Helen1]]:
    with house(Helen1) as (agent, [helen]):
        yield agent, helen


@pytest.fixture
def agent(agent_and_helen: tuple[House, Helen1]) -> Iterator[House]:
    yield agent_and_helen[0]
    assert agent_and_helen[0].process.running, agent_and_helen[0].process.said()


@pytest.fixture
def helen(agent_and_helen: tuple[House, Helen1]) -> Helen1:
    return agent_and_helen[1]


@pytest.fixture
def line(agent: House, helen: Helen1) -> Line:
    """The agent's connection; made anew if a test ended it."""
    return agent.on_line(helen)


# Promise: AGENT-3
def test_it_greets_with_its_certificate_and_says_nothing_of_version_2_unaccepted(agent: House, helen: Helen1) -> None:
    line = helen.accept()
    agent.line = line
    assert line.common_name == "web-1"
    words = line.line().split(b" ")
    assert len(words) == 3
    assert words[0] == b"hello"
    assert words[1] in (b"1", b"2")
    assert words[2].decode()
    assert line.silent(0.5)


def test_a_lua_check_answers(line: Line) -> None:
    before = time.time()
    result = line.run("fine", {"any": ["thing"]})
    assert (result["state"], result["message"]) == ("ok", "fine")
    [metric] = result["metrics"]
    assert (metric["name"], metric["value"]) == ("n", 1)
    assert before - 5 < result["started"] < time.time() + 5
    assert 0 <= result["seconds"] < 5


@pytest.mark.parametrize("name", ["cpu", "memory", "load", "uptime"])
def test_a_built_in_check_answers_by_its_name(line: Line, name: str) -> None:
    result = line.run(name)
    assert result["state"] in STATES
    assert result["metrics"]
    assert all(metric["name"] and isinstance(metric["value"], int | float) for metric in result["metrics"])


def test_a_plugin_answers_with_its_text_and_metrics(line: Line) -> None:
    result = line.run("plain")
    assert result["state"] == "ok"
    assert "DISK OK - free" in result["message"]
    first = result["metrics"][0]
    assert (first["name"], first["value"], first["unit"]) == ("/", 2643, "MB")
    assert (first["warn"], first["crit"], first["min"], first["max"]) == (5948, 5958, 0, 5968)


@pytest.mark.parametrize(
    ("code", "state"), [(0, "ok"), (1, "warning"), (2, "critical"), (3, "unknown"), (9, "unknown")]
)
def test_the_exit_status_of_a_plugin_is_its_state(line: Line, code: int, state: str) -> None:
    assert line.run("state", {"code": code})["state"] == state


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
def test_a_check_that_is_not_allowed_is_unknown(line: Line, name: str) -> None:
    result = line.run(name, {})
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
def test_args_never_reach_a_shell(agent: House, line: Line, value: str) -> None:
    value = value.replace("PLACE", str(agent.place))
    result = line.run("word", {"value": value})
    assert result["state"] == "ok"
    # What is behind a bar is performance data, by the custom of plugins: not part of the message.
    assert result["message"] == f"got:{value}:".split("|")[0].strip()
    assert not (agent.place / "shell").exists()


# Promise: CHECK-3
def test_the_command_of_the_file_reaches_no_shell_either(agent: House, line: Line) -> None:
    result = line.run("metas")
    assert result["state"] == "ok"
    assert "$HOME `id` $(id) ; touch" in result["message"]
    assert not (agent.place / "by-line").exists()
    assert not (agent.place / "by-redirect").exists()


@pytest.mark.parametrize("args", [{"value": ["a"]}, {"value": {"a": 1}}, {"other": 1}, [], 5, None, {"value": "a\nb"}])
def test_args_that_a_plugin_has_no_place_for_are_answered(line: Line, args: object) -> None:
    result = line.run("word", json.dumps(args).encode())
    assert result["state"] == "unknown"


@pytest.mark.parametrize("blob", [b"", b"not json", b"\xff\xfe", b'{"x": NaN}', b"[" * 100_000, b'{"x":1,"x":2}'])
def test_args_that_are_no_json_still_get_a_result(line: Line, blob: bytes) -> None:
    number = line.check("echo", blob)
    heard = line.result()
    assert heard.number == number
    assert heard.json["state"] in STATES


def test_results_come_when_they_are_ready_and_not_in_order(line: Line) -> None:
    slow = line.check("sleepy", {"seconds": "0.8"})
    quick = line.check("fine")
    assert line.result().number == quick
    assert line.result().number == slow


def test_eight_checks_run_at_once(line: Line) -> None:
    began = time.monotonic()
    asked = {line.check("sleepy", {"seconds": "1"}) for _ in range(8)}
    heard = [line.result() for _ in range(8)]
    took = time.monotonic() - began
    assert {message.number for message in heard} == asked
    assert {message.json["state"] for message in heard} == {"ok"}
    assert took < 3, f"8 checks of 1 s took {took:.1f} s"


# Promise: AGENT-4
def test_a_hundred_checks_are_answered_once_each(line: Line) -> None:
    line.send(b"".join(b'check echo %d 9\n{"x":%3d}\n' % (1_000 + n, n) for n in range(100)))
    heard = [line.result() for _ in range(100)]
    assert {message.number: message.json["message"] for message in heard} == {1_000 + n: str(n) for n in range(100)}
    assert line.silent()


def test_any_message_id_comes_back_as_it_went(line: Line) -> None:
    for number in (0, 2_147_483_647):
        line.check("fine", number=number)
        heard = line.result()
        assert heard.words[1] == b"%d" % number


def test_a_message_id_is_one_check_and_one_result(line: Line) -> None:
    """FAULTS: one check per message id, one result per check; said twice while it runs, it is still one."""
    line.check("sleepy", {"seconds": "0.3"}, number=600_007)
    line.check("sleepy", {"seconds": "0.3"}, number=600_007)
    assert line.result().number == 600_007
    assert line.silent(0.6)
    assert line.run("fine")["state"] == "ok"


# Promise: CHECK-1
@pytest.mark.slow
def test_what_never_ends_is_ended_and_says_so(agent: House, line: Line) -> None:
    """All at once: each has its own timeout (2 s here), and none keeps another from answering."""
    began = time.monotonic()
    asked = {line.check(name, args): name for name, args in
             (("spins", {}), ("eats", {}), ("pattern", {}), ("deaf", {}), ("sleepy", {"seconds": "60"}))}  # fmt: skip
    heard = {asked[message.number]: message.json for message in (line.result() for _ in asked)}
    took = time.monotonic() - began
    assert {name: result["state"] for name, result in heard.items()} == dict.fromkeys(asked.values(), "unknown")
    assert all(result["message"] for result in heard.values())
    assert took < 6, f"a timeout of 2 s took {took:.1f} s"
    until(lambda: not left_over("sleep 60"))


def left_over(words: str) -> list[int]:
    """Processes whose command line is this."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    said = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if said == words or said == f"/bin/{words}":
                found.append(int(entry))
    return found


# Promise: CHECK-2
def test_what_a_plugin_left_behind_does_not_survive_it(agent: House, line: Line) -> None:
    line.run("leaves")
    left = int((agent.place / "left").read_text())
    until(lambda: not os.path.exists(f"/proc/{left}"))


@pytest.mark.parametrize("name", ["broken", "nonsense", "nothing", "missing", "dies", "binary"])
def test_a_check_that_crashes_says_so(line: Line, name: str) -> None:
    result = line.run(name)
    assert result["state"] == ("ok" if name == "binary" else "unknown")
    assert result["message"]


# Promise: CHECK-2
def test_a_plugin_that_prints_without_end_is_bounded(line: Line) -> None:
    number = line.check("chatty")
    heard = line.result()
    assert heard.number == number
    assert len(heard.blob) <= MIB
    assert heard.json["state"] in STATES


# Promise: CHECK-4
def test_lua_sees_no_way_out(line: Line) -> None:
    seen, host = line.run("sees")["message"].split("|")
    assert (seen, host) == ("load", "table") or (seen, host) == ("", "table")


def test_args_of_a_whole_mebibyte_are_taken_in(line: Line) -> None:
    blob = b'{"x": "%s"}' % (b"a" * (MIB - len(b'{"x": ""}')))
    assert len(blob) == MIB
    number = line.check("echo", blob)
    heard = line.result()
    assert heard.number == number
    assert heard.json["state"] in STATES
    assert line.run("fine")["state"] == "ok"


# Promise: AGENT-1
def test_bytes_may_come_one_at_a_time_and_lines_end_in_crlf(line: Line) -> None:
    for byte in b'check echo 500077 9\r\n{"x":"y"}\n':
        line.send(bytes([byte]))
    heard = line.result()
    assert heard.number == 500_077
    assert heard.json["message"] == "y"


@pytest.mark.parametrize(
    "said", [b"frobnicate 1 2 3\n", b"ACCEPTED 30\n", b"hello 1 x\n", b"result\n", b"\n", b"x" * 8_192 + b"\n"]
)
def test_a_command_that_it_does_not_know_is_logged_and_ignored(agent: House, line: Line, said: bytes) -> None:
    line.send(said)
    assert line.run("cpu")["state"] in STATES
    assert said.split()[0][:20].decode() in agent.process.said() if said.strip() else True


@pytest.mark.parametrize("said", [b"\xff\n", b"check cpu 1 1048577\n"])
def test_a_helen_that_cannot_spell_is_left_and_found_again(
    agent: House, helen: Helen1, line: Line, said: bytes
) -> None:
    """She never should, says the note; so nothing says what to do but that the agent must live."""
    line.send(said)
    if line.is_over():
        agent.anew()
    assert agent.on_line(helen).run("cpu")["state"] in STATES


def test_reload_brings_changed_lua(agent: House, helen: Helen1, line: Line) -> None:
    """Equus may restart for it: the connection may be another."""
    (agent.checks / "young.lua").write_text('return function(args) return {state = "ok", message = "new"} end')
    (agent.checks / "fine.lua").write_text('return function(args) return {state = "ok", message = "changed"} end')
    line.send(b"reload\n")
    time.sleep(0.3)  # nothing on the wire says that a reload is over
    line = agent.on_line(helen)
    assert line.run("young")["message"] == "new"
    assert line.run("fine")["message"] == "changed"


# Promise: AGENT-13
def test_after_an_error_it_logs_goes_and_comes_back(agent: House, helen: Helen1, line: Line) -> None:
    line.send("error you did something wröng, twice\n".encode())
    assert line.rest() == b""
    began = time.monotonic()
    line = agent.on_line(helen)
    assert time.monotonic() - began < 10
    assert "you did something wröng, twice" in agent.process.said()
    assert line.run("cpu")["state"] in STATES


def test_a_connection_that_breaks_is_made_again(agent: House, helen: Helen1, line: Line) -> None:
    line.check("sleepy", {"seconds": "0.5"})
    agent.hang_up()
    line = agent.on_line(helen)
    assert line.silent(1), "a result of the old connection was sent on the new one"
    assert line.run("cpu")["state"] in STATES
