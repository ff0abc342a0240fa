"""apt is called by `make test` alone, and only after asking.

Promise: PACK-4
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "scripts" / "debian-packages"
SAID = "debian-packages: missing from the system, run: sudo apt-get install strace jq"

pytestmark = pytest.mark.processes


class Machine:
    """A Debian on which nothing is installed; its apt-get writes down how it was called."""

    def __init__(self, folder: Path, user: int = 0) -> None:
        self.called = folder / "called"
        programs = {"apt-get": f'echo "$*" >> {self.called}', "dpkg-query": "exit 1", "id": f"echo {user}"}
        for name, text in programs.items():
            program = folder / name
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}

    def run(self, *words: str, terminal: str | None = None, **env: str) -> str:
        """What the script says; `terminal`: what is typed there."""
        command, env = [str(SCRIPT), *words, "strace", "jq"], {**self.env, **env}
        if terminal is None:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30
            )
            return done.stderr
        ours, theirs = pty.openpty()
        os.write(ours, terminal.encode())
        with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            process.wait(30)
        said = os.read(ours, 65_536).decode()
        os.close(ours)
        return said

    @property
    def installed(self) -> bool:
        return self.called.exists() and "install" in self.called.read_text()


def test_without_ask_it_only_says_what_is_missing(tmp_path):
    machine = Machine(tmp_path)
    assert SAID in machine.run(CI="true")
    assert not machine.installed


def test_without_a_terminal_nobody_is_asked_and_nothing_is_installed(tmp_path):
    machine = Machine(tmp_path)
    assert SAID in machine.run("--ask")
    assert not machine.installed


@pytest.mark.parametrize(("answer", "installed"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False)])
def test_on_a_terminal_the_answer_decides(tmp_path, answer, installed):
    machine = Machine(tmp_path)
    said = machine.run("--ask", terminal=answer)
    assert "install strace jq with apt-get? [y/N]" in said
    assert machine.installed is installed
    assert (SAID in said) is not installed


def test_ci_goes_on_without_asking(tmp_path):
    machine = Machine(tmp_path)
    machine.run("--ask", CI="true")
    assert machine.installed


def test_a_user_who_is_not_root_is_told_what_to_type(tmp_path):
    machine = Machine(tmp_path, user=1000)
    assert SAID in machine.run("--ask", CI="true")
    assert not machine.installed


def test_only_make_test_may_install(tmp_path):
    text = (REPOSITORY / "Makefile").read_text()
    rules = dict(re.findall(r"^([a-z-]+):(.*)$", text, re.MULTILINE))
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", text, re.MULTILINE))
    assert [name for name, recipe in recipes.items() if "--ask" in recipe] == ["system-packages"]
    asks = [name for name, needs in rules.items() if "system-packages" in needs.partition("##")[0].split()]
    assert asks == ["test"]
    assert "apt" not in recipes["setup"] + recipes["demo"]
    assert "debian-packages" not in recipes["setup"] + recipes["demo"]
