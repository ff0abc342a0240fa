"""The worker of the campaign: the one file here that uses the package, as a user's program does.

Each run is recorded in a file before it has any effect, so that SIGKILL cannot hide it.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any, Final

from scale0 import Worker, attempt

RUNS: Final = "EVIDENCE_RUNS"
"""The variable with the file of runs."""
NAME: Final = "EVIDENCE_NAME"
SLOTS: Final = 4

worker = Worker(identity=os.environ.get(NAME))
_runs: Final = os.open(os.environ.get(RUNS, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def record(what: str, number: int, run: str) -> None:
    """One unbuffered write: it survives SIGKILL of this process."""
    os.write(_runs, f"{what} {number} {run} {attempt()} {time.monotonic()!r} {os.getpid()}\n".encode())


@worker.service("evidence.work", slots=SLOTS)
def work(number: int, seconds: float) -> dict[str, Any]:
    """Take a while; no two runs return the same."""
    run = secrets.token_hex(8)
    record("begun", number, run)
    time.sleep(seconds)
    record("ended", number, run)
    return {"number": number, "run": run}
