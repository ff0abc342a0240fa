"""An honest client and an honest backend, measured: `python -m evidence.honest FRONTEND BACKEND SECONDS`.

It prints the p99 of the calls as one number, in seconds; a call that was not answered counts as the whole wait.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

from evidence.model import percentile
from evidence.raw import Raw

PAUSE_SECONDS: Final = 0.005
WAIT_SECONDS: Final = 5.0


def serve(endpoint: str, service: str, stopping: threading.Event) -> None:
    """Answer each request; heartbeats keep the registration."""
    connection = Raw(endpoint)
    connection.register(service, service, slots=10)
    beat = time.monotonic()
    while not stopping.is_set():
        if time.monotonic() >= beat:
            connection.say("HEARTBEAT", {"time": time.time()})
            beat = time.monotonic() + 0.5
        answer = connection.hear(0.2)
        if answer is not None and answer.command == "REQUEST":
            connection.say("REPLY", {"id": answer.options["id"]}, *answer.bodies)
    connection.close()


def measure(endpoint: str, service: str, seconds: float) -> list[float]:
    connection = Raw(endpoint)
    end, times, number = time.monotonic() + seconds, [], 0
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        connection.say("REQUEST", {"service": service, "id": number, "timeout": WAIT_SECONDS}, b"honest")
        answer = connection.hear_one_of("REPLY", "ERROR", seconds=WAIT_SECONDS)
        ok = answer is not None and answer.command == "REPLY" and answer.bodies == [b"honest"]
        times.append(time.monotonic() - began if ok else WAIT_SECONDS)
        time.sleep(PAUSE_SECONDS)
    connection.close()
    return times


def main(frontend: str, backend: str, seconds: float) -> None:
    service = f"honest-{os.getpid()}"
    stopping = threading.Event()
    thread = threading.Thread(target=serve, args=(backend, service, stopping))
    thread.start()
    try:
        time.sleep(0.3)
        times = measure(frontend, service, seconds)
    finally:
        stopping.set()
        thread.join()
    sys.stdout.write(f"{percentile(times, 0.99)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
