"""The worker of `scale0 bench`: two functions that return what they get.

Lives here: what is offered. Never here: a figure. Invariant: its names are those of one run, so that nobody else is
asked, and nobody else asks.
"""

from __future__ import annotations

import os
from typing import Final

from scale0.cli.bench.measurements import RUN, service_of, task_service_of
from scale0.client.worker import Worker

SLOTS: Final = 1_000
"""More than are in flight: a request never waits for a slot."""

worker = Worker()
run: Final = os.environ.get(RUN, "run")


@worker.service(service_of(run), slots=SLOTS, raw=True)
def echo(body: bytes) -> bytes:
    """A request."""
    return body


@worker.service(task_service_of(run), slots=1)
def noop(text: str) -> str:
    """A task."""
    return text
