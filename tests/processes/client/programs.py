"""Workers as programs of their own: started, signalled, and always ended.

Lives here: one process per worker. Never here: what it does (`town`). Invariant: nothing that was started here is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.fakes.waiting import until
from tests.processes.client import town

WAIT_SECONDS = 20.0


class Program:
    """One worker's process."""

    def __init__(self, endpoint: str, identity: str, folder: Path, file: str = town.__file__) -> None:
        self.identity = identity
        self.folder = folder
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "TOWN_FOLDER": str(folder), "PYTHONPATH": path}
        with (folder / f"{identity}.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, file, endpoint, identity], env=environment, stderr=log)
        self.family: list[psutil.Process] = []

    def wait_until_up(self) -> None:
        until(lambda: self.identity in town.notes(self.folder, "up"), f"{self.identity} is up")

    def children(self) -> list[psutil.Process]:
        """All that descend from it, now."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        return self.family

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.children()
            self.kill9()
        for left in self.family:
            if left.is_running():
                left.kill()


@contextmanager
def programs(endpoint: str, folder: Path, *identities: str) -> Iterator[list[Program]]:
    """Workers, all up; ended when the block ends."""
    made: list[Program] = []
    try:
        made.extend(Program(endpoint, identity, folder) for identity in identities)
        for program in made:
            program.wait_until_up()
        yield made
    finally:
        for program in made:
            program.close()
