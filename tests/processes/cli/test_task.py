"""`scale0 task`: submitted in one shell, read in another; through a real broker and worker."""

# Promise: CLI-1
from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from scale0.cli.main import cli
from tests.fakes.shell import Shell, shell_of
from tests.fakes.waiting import until
from tests.processes.cli.test_help import on_a_terminal

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("served")]

QUESTIONS = ("status", "result", "wait", "cancel")


def submitted(shell: Shell, *words: str) -> str:
    done = shell.run("task", "submit", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_task_submitted_in_one_shell_is_read_in_another(shell):
    task = submitted(shell, "echo", "1", "cat.png", "width=100")
    waited = shell.run("task", "wait", task)
    assert (waited.returncode, waited.stdout) == (0, f"{task} finished\n")
    assert json.loads(shell.run("task", "result", task).stdout) == [[1, "cat.png"], {"width": 100}]
    status = shell.json("task", "status", task)
    assert (status["task_id"], status["status"], status["code"], status["attempt"]) == (task, "finished", 7000, 1)
    assert shell.json("task", "result", task)["result"] == [[1, "cat.png"], {"width": 100}]


def test_the_tasks_of_one_user_are_not_anothers_unless_they_say_whose(shell, manager, broker, tmp_path):
    task = submitted(shell, "say", "secret")
    assert shell.run("task", "wait", task).returncode == 0
    other = shell_of(broker, tmp_path / "other")
    other.folder.mkdir()
    refused = other.run("task", "result", task)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"has no task {task}" in refused.stderr
    assert "next: " in refused.stderr
    [row] = [row for row in manager.json("task", "list", "--mine") if row["task_id"] == task]
    assert other.run("task", "result", task, "--client", row["client_id"]).stdout == "secret\n"


def test_a_submission_that_waits_prints_the_result_alone(shell):
    done = shell.run("task", "submit", "say", "hällo", "--wait")
    assert (done.returncode, done.stdout) == (0, "hällo\n")
    assert done.stderr.startswith("task ")
    found = shell.json("task", "submit", "echo", "--wait")
    assert (found["status"], found["result"]) == ("finished", [[], {}])


def test_a_failed_task_prints_its_error_and_is_a_no(shell):
    done = shell.run("task", "submit", "breaks", "--max-attempts", "2", "--wait")
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed: LookupError: no such thing" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    task = done.stderr.split()[1]
    status = shell.run("task", "status", task)
    assert status.returncode == 1
    assert "LookupError: no such thing" in status.stdout
    done = shell.run("task", "result", task, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["message"] == "LookupError: no such thing"
    waited = shell.run("task", "wait", task)
    assert (waited.returncode, waited.stdout) == (1, f"{task} failed: LookupError: no such thing\n")


def test_arguments_that_do_not_fit_say_how_arguments_are_typed(shell):
    assert "each is JSON or else text" in shell.refuses("task", "submit", "say", "5", "--wait")


def test_a_task_that_runs_has_no_result_yet_and_a_wait_ends_in_time(shell, tmp_path):
    gate = tmp_path / "gate"
    task = submitted(shell, "wait.for", str(gate))
    until(lambda: shell.json("task", "status", task)["info"].get("progress") == 0.5, "it tells its progress")
    shown = shell.run("task", "status", task)
    assert "progress" in shown.stdout
    assert "50%" in shown.stdout
    assert f"next: `scale0 task wait {task}`" in shell.refuses("task", "result", task)
    waited = shell.run("task", "wait", task, "--timeout", "0.2", "--json")
    assert (waited.returncode, json.loads(waited.stdout)) == (1, [{"task_id": task, "status": "running"}])
    gate.touch()
    assert shell.run("task", "wait", task, "--timeout", "20").returncode == 0


def test_a_wait_on_a_terminal_shows_the_workers_words_and_no_command_to_it(shell, tmp_path):
    gate = tmp_path / "gate"
    task = submitted(shell, "wait.for", str(gate))
    environment = {**shell.environment, "TERM": "xterm-256color", "COLUMNS": "100"}
    with shell.background("task", "status", task, "--watch", "--json") as watch:
        watch.wait_for('"progress": 0.5')
        output = on_a_terminal(["task", "wait", task, "--timeout", "1"], environment)
        gate.touch()
        watch.wait_for('"finished"')
        assert watch.wait() == 0
    assert "running: half of" in output
    assert "\x1b[2J" not in output
    assert "finished" in on_a_terminal(["task", "wait", task], environment)


def test_options_reach_the_broker(shell, manager, tmp_path):
    first = submitted(shell, "wait.for", str(tmp_path / "gate"), "--priority", "7", "--timeout", "60")
    after = submitted(shell, "say", "later", "--after", first)
    assert shell.json("task", "status", after)["status"] == "scheduled"
    later = submitted(shell, "say", "later", "--at", "2999-01-31T18:00", "--key", "one")
    assert submitted(shell, "say", "later", "--delay", "600", "--key", "one") == later
    rows = {row["task_id"]: row for row in manager.json("task", "list", "--mine")}
    assert rows[first]["priority"] == 7
    assert rows.keys() == {first, after, later}
    (tmp_path / "gate").touch()
    assert shell.run("task", "wait", first, after).returncode == 0
    assert shell.run("task", "cancel", later).returncode == 0


def test_a_cancelled_task_does_not_run_and_can_be_tried_after_all(shell, manager, tmp_path):
    gate = tmp_path / "gate"
    task = submitted(shell, "mends", str(gate), "--delay", "600")
    cancelled = shell.run("task", "cancel", task)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{task} is cancelled\n")
    assert f"task {task} was cancelled" in shell.refuses("task", "result", task)
    gate.touch()
    assert manager.json("task", "retry", task) == [{"task_id": task, "status": "queued"}]
    assert shell.run("task", "wait", task).returncode == 0
    assert shell.run("task", "result", task).stdout == "mended\n"
    again = shell.run("task", "cancel", task)
    assert (again.returncode, again.stdout) == (1, f"{task} had already ended\n")


def test_what_cannot_be_done_for_one_task_is_done_for_the_others(shell, manager):
    task = submitted(shell, "say", "x")
    assert shell.run("task", "wait", task).returncode == 0
    error = manager.refuses("task", "retry", "nosuch", task)
    assert "unknown task nosuch" in error
    assert f"the task {task} has finished" in error
    cancelled = manager.run("task", "cancel", "nosuch", task, "--json")
    assert cancelled.returncode == 1
    assert [row.get("cancelled") for row in json.loads(cancelled.stdout)] == [None, False]


def test_a_list_is_narrowed_paged_and_says_what_to_type_when_it_is_empty(shell, manager):
    tasks = [submitted(shell, "say", str(number), "--priority", "3") for number in ("one", "two", "three")]
    assert shell.run("task", "wait", *tasks).returncode == 0
    assert [row["task_id"] for row in manager.json("task", "list", "--mine")] == tasks[::-1]
    two = manager.run("task", "list", "--mine", "--limit", "2")
    assert tasks[0] not in two.stdout
    assert "--all shows more" in two.stderr
    assert tasks[0] in manager.run("task", "list", "--mine", "--limit", "2", "--all").stdout
    assert manager.json("task", "list", "--mine", "--status", "failed") == []
    assert {row["method"] for row in manager.json("task", "list", "--method", "say", "--status", "finished")} == {"say"}
    empty = manager.run("task", "list", "--client", "nobody")
    assert (empty.returncode, empty.stdout) == (
        0,
        "No task matches client nobody. `scale0 task list` lists all tasks.\n",
    )


def test_a_list_fits_a_terminal_and_keeps_ids_whole(shell, manager):
    task = submitted(shell, "say", "x")
    output = on_a_terminal(["task", "list", "--mine"], {**manager.environment, "TERM": "dumb", "COLUMNS": "80"})
    assert task in output
    assert all(len(line.rstrip("\r")) <= 80 for line in output.split("\n"))


def test_a_list_needs_a_right_and_says_how_to_give_one(shell):
    assert "--data-dir" in shell.refuses("task", "list", status=2)


def test_a_method_that_nobody_offers_is_reported_and_the_task_waits(shell):
    done = shell.run("task", "submit", "nobody.does")
    assert done.returncode == 0
    assert "no worker offers nobody.does yet" in done.stderr
    task = done.stdout.strip()
    assert shell.json("task", "status", task)["status"] == "queued"
    assert shell.run("task", "cancel", task).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("submit", "say", "a=1", "a=2"),
        ("submit", "say", "--priority", "10"),
        ("submit", "say", "--delay", "nan"),
        ("submit", "say", "--at", "tomorrow"),
        ("submit", "say", "--delay", "1", "--at", "2999-01-01"),
        ("submit", "say", "--after", "not an id"),
        ("status", "not an id"),
        ("status", "x", "--client", "not an id"),
        ("wait",),
        ("wait", "x", "--timeout", "-1"),
        ("list", "--status", "lost"),
        ("list", "--limit", "0"),
    ],
)
def test_wrong_usage_is_two(words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert CliRunner().invoke(cli, ["task", *words]).exit_code == 2


@pytest.mark.parametrize("word", QUESTIONS)
def test_an_unknown_task_is_a_no(shell, word):
    assert "next: " in shell.refuses("task", word, "x")


@pytest.mark.parametrize(
    "words", [("submit", "say", "x"), *(pytest.param((word, "x"), marks=pytest.mark.slow) for word in QUESTIONS)]
)
def test_without_a_broker_it_is_three_and_soon(tmp_path, words):
    began = time.monotonic()
    assert "no broker answers" in Shell(tmp_path).refuses("task", *words, "--join", "127.0.0.1:9", status=3)
    assert time.monotonic() - began < 10
