"""Help: quick, complete, and plain where no terminal is."""

from __future__ import annotations

import os
import pty
import resource
import subprocess
import sys

import click
import pytest

from tests.docs.commands import walk
from tests.fakes.shell import Shell

HELP_SECONDS = 0.3
"""Of a core: what a busy machine makes of it is no fault of ours."""


def children_seconds() -> float:
    """What all children that have ended took of a core."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_command_and_option_is_explained():
    for words, command in walk():
        assert command.help, words
        assert command.get_short_help_str(80), words
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{words} {parameter.opts}"


def test_every_reading_command_has_json():
    reading = {"services", "clients", "status", "call", "enable", "disable", "drain", "reload"}
    reading |= {"agents", "checks", "incidents", "config check", "config show", "config history"}
    reading |= {"check run", "check test", "check list", "handler list", "silence list", "downtime list"}
    commands = dict(walk())
    for name in reading:
        assert "--json" in [word for p in commands[f"scale0 {name}"].params for word in p.opts], name


@pytest.mark.processes
def test_help_is_quick(tmp_path):
    shell = Shell(tmp_path)
    best = 9.0
    for _ in range(5):
        began = children_seconds()
        assert shell.run("--help").returncode == 0
        best = min(best, children_seconds() - began)
    assert 0 < best < HELP_SECONDS


HEAVY = ("zmq", "uvloop", "rich", "asyncio", "nacl", "sqlite3", "msgspec")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        ("from scale0.cli.main import cli; list(cli.commands.values())", HEAVY),
        (
            "from scale0.cli.main import cli; cli.commands['status']",
            (*HEAVY, "scale0.cli.tasks.task", "scale0.cli.demo.command"),
        ),
        ("import scale0; scale0.Client", ("asyncio", "ssl", "sqlite3", "xml", "scale0.config", "scale0.cli")),
    ],
    ids=["help", "one command", "a client"],
)
def test_nothing_is_imported_before_it_is_needed(imports, absent):
    code = f"import sys; {imports}\nprint(sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def on_a_terminal(words: list[str], environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "scale0", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    output = b""
    try:
        while more := os.read(ours, 65_536):
            output += more
    except OSError:
        pass  # the other end was closed: that is how a terminal ends
    finally:
        os.close(ours)
        process.wait(30)
    return output.decode(errors="replace")


@pytest.mark.processes
def test_a_terminal_gets_colour_unless_it_is_unwanted(served, shell):
    shell.environment |= {"TERM": "xterm-256color", "COLUMNS": "80"}
    shell.environment.pop("NO_COLOR", None)
    assert "\x1b[32mactive\x1b[0m" in on_a_terminal(["status"], shell.environment)
    assert "\x1b[" in on_a_terminal(["services"], shell.environment)
    plain = on_a_terminal(["status"], {**shell.environment, "NO_COLOR": "1"})
    assert "\x1b[3" not in plain
    assert "active" in plain
    hostile = on_a_terminal(["call", "say", "\x1b[2J"], shell.environment)
    assert "\x1b[2J" not in hostile
    assert "\\x1b[2J" in hostile
