"""`scale0 call`, `services`, `clients`: words in, answers and exit codes out, through a real broker and worker."""

# Promise: CLI-1
from __future__ import annotations

import json
import signal

import pytest

from tests.fakes.shell import Shell, shell_of
from tests.fakes.waiting import until
from tests.processes.cli.conftest import WORKERS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("served")]


def test_arguments_arrive_by_position_and_by_name(shell):
    done = shell.run("call", "echo", "1", "cat.png", "width=100", 'deep={"a": [null]}', "--json")
    assert json.loads(done.stdout) == [[1, "cat.png"], {"width": 100, "deep": {"a": [None]}}]
    assert (done.returncode, done.stderr) == (0, "")


def test_text_is_printed_as_it_is_and_quoted_as_json(shell):
    assert shell.run("call", "say", "hällo = \x1b").stdout == "hällo = \x1b\n"
    assert shell.run("call", "say", '"5"', "--json").stdout == '"5"\n'


def test_after_two_dashes_everything_is_an_argument(shell):
    assert json.loads(shell.run("call", "echo", "--json", "--", "-5", "--retry").stdout) == [[-5, "--retry"], {}]


def test_nothing_and_an_empty_list_are_answers_too(shell):
    assert shell.run("call", "nothing").stdout == "null\n"
    assert shell.run("call", "empty.list").stdout == "[]\n"


def test_an_answer_in_parts_is_printed_part_by_part(shell):
    assert shell.run("call", "count", "3").stdout == "0\n1\n2\n"


def test_raw_frames_go_out_and_come_back_untouched(shell):
    done = shell.run("call", "bytes", "--raw", "abc", "-", stdin="xyz")
    assert (done.returncode, done.stdout) == (0, "cbazyx")
    assert shell.run("call", "bytes.parts", "--raw", "one", "two").stdout == "onetwo"


def test_an_error_of_the_function_is_a_no_with_the_next_step(shell):
    done = shell.run("call", "breaks")
    assert (done.returncode, done.stdout) == (1, "")
    assert "breaks failed: LookupError: no such thing" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_arguments_are_a_no_that_says_how_to_quote(shell):
    done = shell.run("call", "say", "5")
    assert done.returncode == 1
    assert "say does not accept these arguments: text: Expected `str`, got `int`" in done.stderr
    assert "'\"5\"'" in done.stderr


def test_a_service_that_nobody_offers_is_reported_while_waiting_and_at_the_end(shell):
    error = shell.refuses("call", "nobody.does", "--timeout", "1.3")
    assert "no worker offers nobody.does yet; waiting up to 1.3 s" in error
    assert "no worker offers nobody.does (404 no such service)" in error


@pytest.mark.parametrize(
    "words",
    [
        ("call", "say", "--timeout", "0"),
        ("call", "say", "--timeout", "soon"),
        ("call", "say", "a=1", "a=2"),
        ("call", "say", "timeout=5"),
        ("call", "say", "--tiemout", "5"),
        ("call", "--join", "not an address"),
        ("nonsense",),
        ("completion", "tcsh"),
        ("config", "show", "--form", "yaml"),
    ],
)
def test_wrong_usage_is_2(shell, words):
    shell.refuses(*words, status=2)


def test_without_a_service_it_shows_what_is_there(shell):
    done = shell.run("call")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["SERVICE", "BACKENDS", "SLOTS", "BUSY", "WAITING", "WHERE"]
    assert "wait.for" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout


def test_services_as_json_have_their_documented_keys(shell):
    rows = shell.json("services")
    row = next(row for row in rows if row["service"] == "echo")
    assert set(row) >= {"service", "backends", "slots", "busy", "waiting", "where"}
    assert (row["backends"], row["where"]) == (1, ["broker-1"])


def test_clients_as_json_have_their_documented_keys(shell):
    rows = shell.json("clients")
    keys = "identity role services slots busy age since heartbeat_interval config_version protocol"
    assert all(set(row) >= set(keys.split()) for row in rows)
    assert {row["role"] for row in rows} == {"backend", "frontend"}
    assert [row["role"] for row in shell.json("clients", "--role", "backend")] == ["backend"]


def test_the_command_line_is_one_client_whatever_the_process(shell):
    def mine() -> set[str]:
        names = {row["identity"] for row in shell.json("clients")}
        [base] = json.loads((shell.folder / "state" / "scale0" / "clients.json").read_text()).values()
        return {name for name in names if name.startswith(f"{base}.")}

    first, second = mine(), mine()
    assert len(first) == 1
    assert len(second) == 1, "the first one has left, and said so"
    assert first != second


def test_ctrl_c_ends_a_watch_quietly(shell):
    with shell.background("services", "--watch") as watching:
        watching.wait_for("SERVICE")
        watching.signal(signal.SIGINT)
        assert watching.wait() == 130
        assert "Traceback" not in watching.output


@pytest.mark.slow
def test_nobody_at_home_is_3_and_says_what_to_do(tmp_path):
    shell = Shell(tmp_path, SCALE0_JOIN="127.0.0.1:9")
    for words in (("call", "say"), ("status",)):
        error = shell.refuses(*words, status=3)
        assert "no broker answers: tcp://127.0.0.1:9 cannot be reached" in error
        assert "scale0 up" in error


def test_an_empty_network_says_what_to_type(tmp_path, tmp_path_factory):
    from tests.fakes.broker_process import broker_process

    with broker_process(tmp_path_factory.mktemp("empty")) as broker:
        shell = shell_of(broker, tmp_path)
        done = shell.run("call")
        assert done.returncode == 0
        assert "scale0 worker hello.py:worker" in done.stdout
        assert shell.json("services") == []
        assert shell.run("clients", "--role", "backend").stdout.startswith("No backend is connected.")

        # What it says works.
        text = done.stdout.split("Put this in hello.py:\n")[1].split("and run:")[0]
        (tmp_path / "hello.py").write_text("\n".join(line[4:] for line in text.splitlines()))
        with shell.background("worker", "hello.py:worker") as worker:
            worker.wait_for("ready ")
            assert shell.run("call", "hello", "world").stdout == "Hello, world!\n"


@pytest.mark.slow
def test_a_worker_that_joins_is_seen_and_one_that_is_killed_is_not(shell):
    def backends() -> int:
        return int(next(row["backends"] for row in shell.json("services") if row["service"] == "who"))

    shell.environment["TEST_WORKER"] = "second"
    with shell.background("worker", f"{WORKERS}:worker") as worker:
        worker.wait_for("ready second ")
        assert backends() == 2
        worker.signal(signal.SIGKILL)
        until(lambda: backends() == 1, "the killed worker is gone")
