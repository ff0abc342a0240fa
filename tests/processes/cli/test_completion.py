"""Completion of values that only the network knows: quick, and silent when nobody answers."""

# Promise: TERM-6
from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from tests.fakes.shell import Shell, manager_of

pytestmark = pytest.mark.processes

AWAY_SECONDS = 3.0
"""A command's start on a busy machine, and half a second of patience."""


def completed(shell: Shell, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    line = " ".join(("scale0", *words))
    shell.environment |= {"_SCALE0_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    done = shell.run()
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_services_brokers_clients_tasks_and_tokens_are_completed(served, tmp_path):
    manager = manager_of(served, tmp_path)
    id_ = manager.run("task", "submit", "say", "hello").stdout.strip()
    manager.run("access", "issue", "grafana")
    assert completed(manager, "call", "by") == ["bytes", "bytes.parts"]
    assert completed(manager, "queues", "--match", "empt") == ["empty.list"]
    assert completed(manager, "drain", "bro") == ["broker-1"]
    assert completed(manager, "task", "show", id_[:4]) == [id_]
    assert completed(manager, "access", "revoke", "gra") == ["grafana"]
    assert completed(manager, "config", "diff", "1") == ["1"]


def test_without_a_right_nothing_is_completed_where_one_is_needed(served, shell):
    assert completed(shell, "task", "show", "") == []
    assert completed(shell, "call", "who") == ["who"]
    assert completed(shell, "check", "run", "a") == []


def test_completion_is_quick_and_silent_when_the_broker_is_away(tmp_path):
    shell = Shell(tmp_path, SCALE0_JOIN="127.0.0.1:1")
    assert completed(shell, "st") == ["status", "store"]
    began = time.monotonic()
    assert completed(shell, "call", "x") == []
    assert time.monotonic() - began < AWAY_SECONDS


@pytest.mark.parametrize(("name", "word"), [("bash", "complete -o"), ("zsh", "#compdef scale0"), ("fish", "complete")])
def test_the_script_is_one_that_its_shell_reads(tmp_path, name, word):
    script = tmp_path / f"completion.{name}"
    done = Shell(tmp_path).run("completion", name)
    assert done.returncode == 0
    assert word in done.stdout
    assert "_SCALE0_COMPLETE" in done.stdout
    script.write_text(done.stdout)
    program = shutil.which(name)
    if program is not None:  # bash is everywhere; the others where somebody has them
        done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, env=os.environ, check=False)
        assert (done.returncode, done.stderr) == (0, "")
