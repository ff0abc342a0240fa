"""Handlers for the tests of workers, and a worker to run as a program: `python handlers.py ENDPOINT IDENTITY FOLDER`.

A handler that leaves a trace appends one line, in one write, to a file in FOLDER, so that lines of several processes
never mix.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scale0

FOLDER_VARIABLE = "HANDLERS_FOLDER"


def note(name: str, text: object) -> None:
    descriptor = os.open(Path(os.environ[FOLDER_VARIABLE]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def notes(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


# Values


def echo(value: Any) -> Any:
    return value


def arguments(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


def same(*frames: bytes) -> tuple[bytes, ...]:
    return frames


def add(one: int, other: int = 1) -> int:
    return one + other


def double(number: int) -> int:
    return 2 * number


def paint(colour: str) -> str:
    return f"it is {colour}"


def parts(most: int) -> Iterator[int]:
    yield from range(most)


def raw(*frames: bytes) -> list[bytes]:
    return [*frames, b"done"]


# Time


def waits(seconds: float) -> float:
    threading.Event().wait(seconds)
    return seconds


def burn(seconds: float) -> int:
    """Work that keeps the interpreter busy."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1_000))
    return os.getpid()


def drip(most: int) -> Iterator[int]:
    for number in range(most):
        yield number
        threading.Event().wait(0.1)


def tells(words: int) -> int:
    for number in range(words):
        scale0.progress((number + 1) / words, f"word {number + 1}")
    return scale0.attempt()


# Errors


class Unsteady(ConnectionError):
    """An error that only a child ever sees."""


def fails(code: int) -> None:
    error = RuntimeError("on purpose")
    error.code = code  # type: ignore[attr-defined]
    raise error


def raises(name: str) -> None:
    kinds = {"unsteady": Unsteady, "value": ValueError, "retry": scale0.Retry, "give_up": scale0.GiveUp}
    raise kinds[name](f"{name} in {os.getpid()}")


def exits() -> None:
    sys.exit(1)


# What happens to the process


def pid() -> int:
    return os.getpid()


def kill_self(number: int) -> None:
    os.kill(os.getpid(), number)


def segfault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def leave(status: int) -> None:
    os._exit(status)


def hog(limit: int) -> int:
    """Takes more memory than it may have."""
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, resource.RLIM_INFINITY))
    return len(bytes(4 * limit))


def hangs(file: str) -> None:
    """Never ends, and neither does what it started; the file names both processes."""
    other = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(f"{os.getpid()} {other.pid}")
    while True:
        signal.pause()


# The program


def begin_and_wait(name: str) -> str:
    """Note that it has begun, and go on when the test makes a file."""
    note("begun", name)
    pause = threading.Event()
    while not (Path(os.environ[FOLDER_VARIABLE]) / f"go.{name}").exists():
        pause.wait(0.005)
    return name


def once(number: int) -> int:
    note("done", f"{number} {os.getpid()}")
    return again(number)


def again(number: int) -> int:
    threading.Event().wait(0.002)
    return number


def announce(worker: scale0.Worker, identity: str) -> None:
    worker.wait_until_up()
    os.write(1, f"ready {identity}\n".encode())


def main(endpoint: str, identity: str, folder: str) -> int:
    os.environ[FOLDER_VARIABLE] = folder
    worker = scale0.Worker(endpoint, identity=identity)
    for function in (once, again, begin_and_wait):
        worker.add(function.__name__, function, slots=4)
    worker.add("main.pid", pid, mode="process")
    worker.add("main.hangs", hangs, mode="process")
    threading.Thread(target=announce, args=(worker, identity), daemon=True).start()
    worker.run()
    note("left", f"{identity} {worker.error}")
    return 1 if worker.error else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
