"""Durable tasks: submitted once, run even if processes die.

Start a broker (`scale0 up`) and run this file: it is worker and client in one process, which is enough to see the API.

What it shows: a task and its result, options (priority, key, dependencies), many tasks with results as they complete,
progress from inside a handler, and a failure with its retries.
"""

from __future__ import annotations

import sys

import scale0

FRONTEND = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5700"
BACKEND = sys.argv[2] if len(sys.argv) > 2 else "tcp://127.0.0.1:5701"

worker = scale0.Worker(BACKEND)


@worker.service("square", slots=4)
def square(number: int) -> int:
    """Short tasks are sent in batches."""
    return number * number


@worker.service("report")
def report(pages: int) -> str:
    """Long work reports its progress."""
    for page in range(pages):
        scale0.progress((page + 1) / pages, note=f"page {page + 1}")
    return f"{pages} pages, at attempt {scale0.attempt()}"


@worker.service("fragile", retry_on=(ConnectionError,))
def fragile() -> str:
    """An exception of a type that is retried."""
    if scale0.attempt() < 3:
        raise ConnectionError("not yet")
    return "done at the third attempt"


def main() -> None:
    """Submit, wait, print."""
    worker.start()
    with scale0.Client(FRONTEND) as net:
        task = net.submit("square", 7)  # returns once it is on the broker's disk
        print("square:", task.result(timeout=10))

        first = net.task(key="report of today", priority=7).submit("report", 3)
        again = net.task(key="report of today").submit("report", 3)  # the same key: the same task
        print("one task:", first.id == again.id)
        after = net.task(after=[first]).submit("square", 3)
        print("report:", first.result(timeout=10), "then", after.result(timeout=10))

        total = sum(net.task().map("square", range(1_000)))  # as they complete
        print("sum of squares:", total)
        print("fragile:", net.submit("fragile").result(timeout=10))
        print("status:", first.status().status, first.progress())
    worker.stop()


if __name__ == "__main__":
    main()
