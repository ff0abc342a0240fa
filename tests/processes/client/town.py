"""Handlers for processes of their own, and a worker to run as a program: `python town.py ENDPOINT IDENTITY FOLDER`.

Lives here: what the worker does. Never here: a check. Each handler that leaves a trace appends one line, in one write,
to a file in FOLDER, so that lines of several processes never mix.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import scale0

FOLDER = Path(os.environ.get("TOWN_FOLDER", "."))


def note(name: str, text: object) -> None:
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def notes(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


def pid() -> int:
    return os.getpid()


def burn(seconds: float) -> int:
    """Work of a kind that never lets go of the interpreter for long."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1_000))
    return os.getpid()


def kill_self(number: int) -> None:
    os.kill(os.getpid(), number)


def crash() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def leave(status: int) -> None:
    os._exit(status)


def exits() -> None:
    sys.exit(1)


def hang() -> None:
    note("hanging", os.getpid())
    while True:
        signal.pause()


def family() -> None:
    """A handler that starts a process, and hangs."""
    note("family", subprocess.Popen(["sleep", "600"]).pid)
    while True:
        signal.pause()


def drip(most: int) -> Iterator[int]:
    for number in range(most):
        yield number
        threading.Event().wait(0.1)


def raw(*frames: bytes) -> list[bytes]:
    return [*frames, b"done"]


def begin_and_wait(name: str) -> str:
    """Says that it has begun, and goes on when the test says so."""
    note("begun", name)
    pause = threading.Event()
    while not (FOLDER / f"go.{name}").exists():
        pause.wait(0.005)
    return name


def once(number: int) -> int:
    note("done", f"{number} {os.getpid()}")
    threading.Event().wait(0.002)
    return number


def again(number: int) -> int:
    threading.Event().wait(0.002)
    return number


def announce(worker: scale0.Worker, identity: str) -> None:
    worker.wait_until_up()
    note("up", identity)


def main(endpoint: str, identity: str) -> int:
    worker = scale0.Worker(endpoint, identity=identity)
    worker.add("once", once, slots=4)
    worker.add("again", again, slots=4)
    worker.add("begin_and_wait", begin_and_wait, slots=2)
    worker.add("main.pid", pid, mode="process")
    worker.add("main.hang", hang, mode="process")
    threading.Thread(target=announce, args=(worker, identity), daemon=True).start()
    worker.run()
    note("left", f"{identity} {worker.error}")
    return 1 if worker.error else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
