#!/usr/bin/env python3
"""Type the commands of a page, one after the other, as somebody who reads it would.

Lives here: which lines are commands, and how each is run. Never here: an import beyond the standard library, since it
runs where nothing is installed. Invariant: what was started is ended, in reverse order and by Ctrl-C, whatever fails.

In the blocks of a section, fenced or indented, a line that starts with `$ ` is a command, and the lines after it are
what it prints. A fenced block of Python is a file if the paragraph before it ends with its name: "A service, in
`hello.py`:".
What stays in the foreground, or ends with `&`, goes on while the next commands are typed; where that paragraph says
"two of it" or "two workers", two are started. A line `^C` ends all that goes on. A number or id that the page shows
stands for the one that was printed here: after `(from process 14709)`, `kill -9 14709` kills the process that
answered. A command may fail where the page shows that it does: its output there begins with `scale0: `, or names a
state that is not well. One that says "wait a minute" is waited for, and typed again, once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

STAYING = ("up", "broker", "worker", "helen", "agent", "management serve", "pipeline stream")
"""Commands that stay in the foreground."""
READY = re.compile(r"^ready\b", re.MULTILINE)
READY_SECONDS = 60.0
COMMAND_SECONDS = 900.0
SETTLE_SECONDS = 1.0
"""What somebody needs to read one answer and type the next command."""
WAIT_SECONDS = 65.0
ENDING = "^C"
STOP_SECONDS = 30.0

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|((?:^ {4}[^\n]*\n|^\n(?= {4}))+)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w./-]+\.\w+)`[^`]*:\s*\Z")
_UNWELL = re.compile(r"\b(critical|warning|unknown)\b")
_TWO = re.compile(r"\btwo (?:of|workers)\b")
_WORDS = re.compile(r"[\w.:-]+")


class File(NamedTuple):
    """A file that the page has its reader write."""

    name: str
    text: str


class Command(NamedTuple):
    """One command with what the page shows of its output, and how often it is started."""

    line: str
    shown: tuple[str, ...]
    copies: int = 1


def section_of(page: str, title: str) -> str:
    """The text below a heading, up to the next of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"the page has no section {title!r}")
    return re.sub(r"^<!--.*?-->\n\n?", "", found[2], flags=re.MULTILINE | re.DOTALL)


def steps(section: str) -> Iterator[File | Command]:
    """What to write and to type, in order."""
    end = 0
    for block in _BLOCK.finditer(section):
        before, end = section[end : block.start()].rstrip(), block.end()
        paragraph = before.rpartition("\n\n")[2]
        language, fenced, indented = block.groups()
        named = _NAMED.search(paragraph)
        if fenced is not None and language not in ("", "console", "shell", "sh", "bash", "text"):
            if named:
                yield File(named[1], fenced)
            continue
        text = fenced if fenced is not None else re.sub(r"^ {4}", "", indented, flags=re.MULTILINE)
        yield from commands(text, 2 if _TWO.search(paragraph.lower()) else 1)


def commands(block: str, copies: int) -> Iterator[Command]:
    """The commands of a block; one that ends with a backslash goes on in the next line."""
    line, shown, goes_on = "", [], False
    for one in block.splitlines():
        if goes_on:
            line += "\n" + one.removeprefix("> ")
        elif one.startswith("$ ") or one == ENDING:
            if line:
                yield Command(line, tuple(shown), copies if stays(line) else 1)
            line, shown = one.removeprefix("$ "), []
        elif line and one.strip():
            shown.append(one)
        goes_on = bool(line) and not shown and line.endswith("\\")
    if line:
        yield Command(line, tuple(shown), copies if stays(line) else 1)


def stays(line: str) -> bool:
    """True of what does not end by itself."""
    return line.endswith("&") or any(re.match(rf"scale0 {words}(?: (?!init|token|enrol)|$)", line) for words in STAYING)


def may_end(command: Command, status: int) -> bool:
    """True if the page lets it end so: 0; another where it shows an error; 1 where it shows something unwell."""
    if command.shown and command.shown[0].startswith("scale0: "):
        return status != 0
    return status == 0 or (status == 1 and any(_UNWELL.search(line) for line in command.shown))


def learn(shown: tuple[str, ...], said: str, meanings: dict[str, str]) -> None:
    """What stands here for the numbers and ids of the page: lines that differ in nothing else are the same line."""
    lines = [_WORDS.findall(line) for line in said.splitlines()]
    for one in shown:
        wanted = _WORDS.findall(one)
        for line in lines:
            if len(line) == len(wanted) and all(
                a == b or (is_id(a) and is_id(b)) for a, b in zip(wanted, line, strict=True)
            ):
                meanings.update({a: b for a, b in zip(wanted, line, strict=True) if a != b})


def is_id(word: str) -> bool:
    """True of what has a digit in it."""
    return any(letter.isdigit() for letter in word)


def meant(line: str, meanings: dict[str, str]) -> str:
    """The command with what its numbers and ids stand for here."""
    return _WORDS.sub(lambda found: meanings.get(found[0], found[0]), line)


class Reader:
    """Somebody in a folder of their own, with a shell or several."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self._folder = folder
        self._repository = repository
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._meanings: dict[str, str] = {}
        self.failed: list[str] = []
        path = f"{repository / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {**os.environ, "PATH": path}

    def do(self, step: File | Command) -> None:
        """Write or type."""
        if isinstance(step, File):
            print(f"--- writes {step.name}", flush=True)
            (self._folder / step.name).write_text(step.text)
            return
        if step.line == ENDING:
            self.stop()
            return
        line = meant(step.line, self._meanings)
        for _ in range(step.copies):
            print(f"$ {line}", flush=True)
            (self._start if stays(line) else self._run)(line, step)

    def _start(self, line: str, step: Command) -> None:
        log = self._folder / f".log-{len(self._running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._shell(line.rstrip("& ")), cwd=self._folder, env=self._environment, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._running.append((line, process, log))
        ours = line.startswith("scale0 ")
        until = time.monotonic() + (READY_SECONDS if ours else SETTLE_SECONDS)
        while time.monotonic() < until and process.poll() is None and not READY.search(log.read_text()):
            time.sleep(0.1)
        print(log.read_text(), flush=True)
        if process.poll() is not None or (ours and not READY.search(log.read_text())):
            self.failed.append(f"{line}: not ready")
        learn(step.shown, log.read_text(), self._meanings)

    def _run(self, line: str, step: Command) -> None:
        time.sleep(SETTLE_SECONDS)
        done = self._typed(line)
        if done.returncode != 0 and "wait a minute" in done.stdout:
            time.sleep(WAIT_SECONDS)
            done = self._typed(line)
        if not may_end(step, done.returncode):
            self.failed.append(f"{line}: exit {done.returncode}")
        learn(step.shown, done.stdout, self._meanings)

    def _typed(self, line: str) -> subprocess.CompletedProcess[str]:
        place = self._repository if line.startswith(("make", "git")) else self._folder
        started = time.monotonic()
        done = subprocess.run(
            self._shell(line), cwd=place, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        print(f"{done.stdout.rstrip()}\n--- exit {done.returncode}, {time.monotonic() - started:.1f} s", flush=True)
        return done

    def _shell(self, line: str) -> list[str]:
        """What stays must be the process that gets Ctrl-C; what ends may be a word of the shell's own, as `kill` is."""
        return ["bash", "-c", f"exec {line}" if stays(line) and not re.search(r"[|;&<>]", line) else line]

    def stop(self) -> None:
        """Ctrl-C, in reverse order; what does not end, or not in order, has failed."""
        for line, process, log in reversed(self._running):
            if process.poll() == -signal.SIGKILL:
                continue  # the page had it killed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                status = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
            print(f"--- Ctrl-C of {line}: exit {status}", flush=True)
            if line.startswith("scale0 ") and status != 0:
                self.failed.append(f"{line}: exit {status} after Ctrl-C\n{log.read_text()[-2000:]}")
        self._running.clear()


def main() -> int:
    """0: everything went as the page says."""
    words = argparse.ArgumentParser(description="Type the commands of a page.")
    words.add_argument("page", type=Path)
    words.add_argument("--section", default="Five minutes")
    words.add_argument("--list", action="store_true", help="only say what would be typed")
    chosen = words.parse_args()
    found = list(steps(section_of(chosen.page.read_text(encoding="utf-8"), chosen.section)))
    if chosen.list:
        for step in found:
            print(f"write {step.name}" if isinstance(step, File) else f"type {step.copies} x {shlex.quote(step.line)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="readme-", dir=Path.home()) as folder:
        reader = Reader(Path(folder), chosen.page.resolve().parent)
        try:
            for step in found:
                reader.do(step)
        finally:
            reader.stop()
    for line in reader.failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if reader.failed else 0


if __name__ == "__main__":
    sys.exit(main())
