"""Callers that never stop asking: numbered calls, one after another, each with its outcome and how long it took.

They run in threads of a test, or as a program: `python callers.py ENDPOINT FIRST`.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Final

import scale0
from scale0.errors import CallError

ONCE_TIMEOUT: Final = 3.0
AGAIN_TIMEOUT: Final = 20.0
"""Longer than everything that is killed is away: what may run twice must be answered."""


@dataclass
class Caller:
    """Two threads with one client: calls that must not run twice, and calls that may."""

    endpoint: str
    first: int
    outcomes: dict[str, list[tuple[int, int, float]]] = field(default_factory=lambda: {"once": [], "again": []})
    """By service: number, code, seconds."""
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self.net = scale0.Client(self.endpoint)
        self.threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in self.outcomes]
        for thread in self.threads:
            thread.start()

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(AGAIN_TIMEOUT + 5)
            assert not thread.is_alive(), "a call did not end"
        self.net.close()

    def answered(self, service: str) -> int:
        return sum(code == 200 for _, code, _ in self.outcomes[service])

    def _run(self, service: str) -> None:
        may_repeat = service == "again"
        timeout = AGAIN_TIMEOUT if may_repeat else ONCE_TIMEOUT
        number = self.first
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                code = 200 if self.net.call(service, number, timeout=timeout, retry=may_repeat) == number else 0
            except CallError as error:
                code = error.code
            self.outcomes[service].append((number, code, time.monotonic() - begin))
            number += 1


def main(endpoint: str, first: str) -> None:
    caller = Caller(endpoint, int(first))
    caller.start()
    sys.stdout.write("calling\n")
    sys.stdout.flush()
    for thread in caller.threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:3])
