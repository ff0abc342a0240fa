"""Tasks with live output: progress, retries, dependencies, priorities, cancellation.

scale0 up
scale0 worker builds.py
python live.py [tcp://127.0.0.1:5700 tcp://127.0.0.1:5701]
"""

from __future__ import annotations

import sys

import scale0
from scale0.errors import AfterFailed

LOOK_SECONDS = 0.1


def watch(**tasks: scale0.Task) -> None:
    """A line for each change of each task, until all have ended."""
    told: dict[str, str] = {}
    waiting = dict(tasks)
    while waiting:
        for name, task in list(waiting.items()):
            status = task.status()
            share, note = status.progress
            line = f"  {name:8} {status.status:9} {'' if share is None else format(share, '.0%'):>4} {note}".rstrip()
            if told.get(name) != line:
                told[name] = line
                print(line, flush=True)
            if status.ended:
                del waiting[name]
        for task in list(waiting.values())[:1]:
            task.wait(LOOK_SECONDS)  # returns at once when it ends: no time is slept away


def progress(net: scale0.Client) -> None:
    """The progress that a worker reports."""
    task = net.submit("build.fetch", 3)
    watch(fetch=task)
    print(" ", task.result())


def retries(net: scale0.Client) -> None:
    """`backoff`: seconds before the next attempt, doubled each time; the delay of the handler is the minimum."""
    print(" ", net.task(max_attempts=5, backoff=0.1).submit("build.upload", "app").result(timeout=30))


def dependencies(net: scale0.Client) -> None:
    """A task that waits for others is `scheduled`; if one of them fails, it is never run."""
    fetch = net.submit("build.fetch", 2)
    watch(fetch=fetch, compile=net.task(after=[fetch]).submit("build.compile", "app"))
    signed = net.submit("build.sign", "app")
    try:
        net.task(after=[signed]).submit("build.upload", "app").result(timeout=30)
    except AfterFailed:
        print("  upload was not tried:", signed.error())


def priorities(net: scale0.Client, backend: str) -> None:
    """No worker offers `build.release` yet, so the tasks wait. A new worker receives the most urgent one first."""
    tasks = [
        net.task(priority=level).submit("build.release", name)
        for name, level in (("some day", 1), ("usual", 4), ("urgent", 9))
    ]
    order: list[str] = []
    worker = scale0.Worker(backend)
    worker.add("build.release", order.append)
    worker.start()
    for task in tasks:
        task.result(timeout=30)
    worker.stop()
    print("  done in this order:", ", ".join(order))


def cancelling(net: scale0.Client) -> None:
    """A task that has not started never starts; one that has started is asked to stop."""
    task = net.submit("build.test", "app")
    while task.status().status != "running":
        task.wait(LOOK_SECONDS)
    print("  cancelled:", task.cancel())
    try:
        task.result(timeout=30)
    except scale0.TaskCancelled as error:
        print("  result:", error.message)


def main(frontend: str = "tcp://127.0.0.1:5700", backend: str = "tcp://127.0.0.1:5701") -> None:
    """Each part by itself."""
    with scale0.Client(frontend) as net:
        for part in (progress, retries, dependencies, cancelling):
            print(part.__name__)
            part(net)
        print("priorities")
        priorities(net, backend)


if __name__ == "__main__":
    main(*sys.argv[1:])
