"""Broker processes that end badly: killed at a step of a commit, with a disk that fails, or watched by strace.

Lives here: processes and what they leave behind. Never here: what is said to them. Invariant: whatever a test does, the
processes that it started are gone at the end, and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scale0.history.events.journal import JournalRow, read
from scale0.storage.rows import ReadJournal
from scale0.storage.sqlite.store import SqliteStore
from tests.processes.crash import doomed

PORTS = ("frontend", "backend", "peer", "config_pub", "task_pub")
READY_SECONDS = 30.0
END_SECONDS = 20.0
ORDINARY = ("-m", "scale0", "broker", "--config")


class Mortal:
    """One broker, perhaps under a tool that watches it."""

    def __init__(self, folder: Path, tool: Sequence[str] = (), program: Sequence[str] = ORDINARY, **config: Any):
        folder.mkdir(parents=True, exist_ok=True)
        self.data = Path(config.pop("data_dir", folder / "data"))
        usual = {"identity": "broker-1", "state": "active", "data_dir": str(self.data), "segments": "off"}
        self.file, self.errors = folder / "broker.json", folder / "broker.log"
        self.file.write_text(json.dumps({**usual, **{f"{name}_port": 0 for name in PORTS}, **config}))
        self._command = [*tool, sys.executable, *program]
        self._command.insert(len(self._command) if program is ORDINARY else len(tool) + 2, str(self.file))

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with self.errors.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        words = self._first_line().split()
        assert words[:1] == ["ready"], f"it said {words}\n{self.said}"
        self.endpoints = dict(word.split("=", 1) for word in words if "=" in word)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        told, until = b"", time.monotonic() + READY_SECONDS
        while not told.endswith(b"\n") and (left := until - time.monotonic()) > 0:
            if select.select([self.process.stdout], [], [], left)[0]:
                more = os.read(self.process.stdout.fileno(), 4_096)
                if not more:
                    break
                told += more
        return told.decode(errors="replace")

    @property
    def said(self) -> str:
        """What it said on stderr, in all its lives."""
        return self.errors.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Of the broker itself, not of its tool: whoever holds the data folder says so there."""
        return int((self.data / "lock").read_text())

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float = END_SECONDS) -> int:
        """It ends by itself; how."""
        return self.process.wait(seconds)

    def stop(self) -> int:
        """Ask it to stop in order; its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if getattr(self, "process", None) is None:
            return
        if self.running:
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid, signal.SIGKILL)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def mortal(
    folder: Path, tool: Sequence[str] = (), program: Sequence[str] = ORDINARY, **config: Any
) -> Iterator[Mortal]:
    """A running broker; ended when the block ends."""
    made = Mortal(folder, tool, program, **config)
    try:
        made.start()
        yield made
    finally:
        made.close()


def dies_at(point: str, nth: int) -> tuple[str, ...]:
    """The program of a broker that kills itself when it reaches a failpoint for the nth time."""
    return (doomed.__file__, point, str(nth))


def journal(data: Path) -> list[dict[str, Any]]:
    """All events of a folder that nobody uses now; their numbers have no gap."""
    store = SqliteStore(data)
    opened = store.open()
    rows: Any = store.read(ReadJournal(0, 100_000))
    store.close()
    events = [event for row in rows if isinstance(row, JournalRow) for event in read(row.body)]
    assert [event["seq"] for event in events] == list(range(1, opened.next_seq))
    return events
