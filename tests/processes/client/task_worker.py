"""A worker of its own for the tests of tasks: `python task_worker.py ENDPOINT IDENTITY`.

Lives here: what it does. Never here: a check. What leaves a trace does so as `town` does.
"""

from __future__ import annotations

import os
import sys
import threading

import scale0
from tests.processes.client import town


def once(number: int) -> int:
    town.note("ran", number)
    return number


def hold(name: str) -> str:
    """Says that it has begun, and goes on when the test says so."""
    town.note("begun", f"{name} {os.getpid()}")
    pause = threading.Event()
    while not (town.FOLDER / f"go.{name}").exists():
        pause.wait(0.005)
    return name


def main(endpoint: str, identity: str) -> int:
    worker = scale0.Worker(endpoint, identity=identity)
    worker.add("once", once, slots=2)
    worker.add("hold", hold, slots=4)
    threading.Thread(target=town.announce, args=(worker, identity), daemon=True).start()
    worker.run()
    return 1 if worker.error else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
