"""A README's commands, run as they stand there, and what they print, compared with what stands there.

Lives here: reading blocks of a terminal out of a page, a terminal for them, and what counts as the same. Never here: an
example. Invariants: a command is run word for word, but for ports, which must be free here; what was started is gone
at the end. Numbers, ids and the widths of columns differ from run to run; everything else is compared.

    $ scale0 up --bare &          in the background, until it has printed what stands below it
    $ kill -9 %1                  the first of those in the background
    $ curl …                      to its end
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cli.shell import EXAMPLES, REPOSITORY, Background, Shell, background
from tests.support.ports import free_port

PATIENCE_SECONDS: Final = 100.0
PROGRAMS: Final = {"scale0": "scale0", "uvicorn": "uvicorn", "python": ""}
"""Commands of the virtual environment, by the module that is run for each."""
_KILL: Final = re.compile(r"kill( -9)? %([1-9])")
_WILD: Final = "…"
_MASKS: Final = (
    (re.compile(r"/tmp/[\w./-]+"), "/tmp/…"),
    (re.compile(r"(?<![.\w])(?=[0-9a-f]*[0-9])[0-9a-f]{7,}\b(\.[0-9a-f]{12}\b)?"), "ID"),
    (re.compile(r"\b[0-9][0-9,]*(\.[0-9]+)?(e-[0-9]+)?"), "0"),
    (re.compile(r"\b0 (ms|s|min|h)\b"), "0 s"),
    (re.compile(r"[ \t]+"), " "),
)


class Command(NamedTuple):
    """One line that is typed, and what is printed after it."""

    text: str
    printed: tuple[str, ...]


def commands(page: str) -> list[Command]:
    """All commands of a page, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in page.replace("\\\n    ", "").splitlines():
        if line.startswith("    $ "):
            found.append((line[6:], []))
        elif line.startswith("    ") and found:
            found[-1][1].append(line[4:])
        elif line and found:
            found[-1][1].append("")  # prose: what is printed ends here, or goes on in a block without a command
    return [Command(text, tuple(trimmed(printed))) for text, printed in found]


def trimmed(lines: list[str]) -> list[str]:
    """Without blank lines: they are no words."""
    return [line.rstrip() for line in lines if line.strip()]


def masked(line: str) -> str:
    """What is the same in every run."""
    for pattern, word in _MASKS:
        line = pattern.sub(word, line)
    return line.strip()


def same(printed: str, said: str) -> bool:
    """One line; `…` stands for anything."""
    parts = (re.escape(masked(part)) for part in printed.split(_WILD))
    return re.fullmatch(".*".join(parts), masked(said)) is not None


def check_said(printed: tuple[str, ...], said: str) -> None:
    """All that was printed, line by line; a line `…` stands for any number of them."""
    lines = trimmed(said.splitlines())
    if not matches(printed, lines):
        raise AssertionError("\n".join(difflib.unified_diff(printed, lines, "the README", "this run", lineterm="")))


def matches(printed: Sequence[str], said: Sequence[str]) -> bool:
    """True if these lines are those."""
    if not printed:
        return not said
    if printed[0].strip() == _WILD:
        return any(matches(printed[1:], said[skipped:]) for skipped in range(len(said) + 1))
    return bool(said) and same(printed[0], said[0]) and matches(printed[1:], said[1:])


class Terminal:
    """One user's terminal in a folder."""

    def __init__(self, folder: Path, scratch: Path, ports: Mapping[str, int], **variables: str) -> None:
        self.folder = folder
        self._ports = ports
        self._stack = contextlib.ExitStack()
        self.jobs: list[Background] = []
        programs = scratch / "bin"
        programs.mkdir()
        for name, module in PROGRAMS.items():
            start = [sys.executable, *(["-m", module] if module else [])]
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n')
            (programs / name).chmod(0o755)
        path = os.pathsep.join([str(programs), str(REPOSITORY / ".venv-node" / "bin"), os.environ["PATH"]])
        # What an example makes for itself lies where the pages have it; what it says is read as it is said.
        variables = {"TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1", **variables}
        self.environment = Shell(scratch, PATH=path, **variables).environment

    def play(self, *all_commands: Command) -> None:
        """Type each, and compare."""
        for command in all_commands:
            if found := _KILL.fullmatch(command.text):
                self.kill(int(found[2]), signal.SIGKILL if found[1] else signal.SIGTERM)
            elif command.text.endswith(" &"):
                self.start(command)
            else:
                check_said(command.printed, self.run(command.text))

    def run(self, text: str) -> str:
        """To its end, which must be a good one; what it said."""
        done = subprocess.run(
            ["bash", "-c", self.adapted(text)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{text}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, command: Command) -> Background:
        """In the background, until it has said what is printed."""
        words = ["bash", "-c", f"exec env {self.adapted(command.text.removesuffix(' &'))}"]
        job = self._stack.enter_context(background(words, self.folder, self.environment))
        self.jobs.append(job)
        for line in command.printed:
            job.wait_until(lambda line=line: any(same(line, said) for said in job.said.splitlines()))  # type: ignore[misc]
        return job

    def kill(self, number: int, by: signal.Signals) -> None:
        """The job with this number; one that is asked to end must end well."""
        job = self.jobs[number - 1]
        job.signal(by)
        status = job.wait()
        assert status == (-by if by == signal.SIGKILL else 0), (status, job.said)

    def adapted(self, text: str) -> str:
        """With ports that are free here."""
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        return text

    def close(self) -> None:
        """End what still runs, the last one first."""
        self._stack.close()


@contextlib.contextmanager
def terminal(
    folder: Path, scratch: Path, ports: Mapping[str, int] | None = None, **variables: str
) -> Iterator[Terminal]:
    """A terminal; what it started is gone at the end of the block."""
    made = Terminal(folder, scratch, ports or {}, **variables)
    try:
        yield made
    finally:
        made.close()


def free_ports() -> dict[str, int]:
    """Free ports in place of those that pages use: five in a row, as `scale0 up` takes them, and one for HTTP."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 5):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
            return {**{str(5_700 + i): first + i for i in range(5)}, "8000": free_port()}


def lone(name: str, scratch: Path) -> Path:
    """An example's folder as a copy: what it makes is left there."""
    return shutil.copytree(
        EXAMPLES / name, scratch / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
    )
