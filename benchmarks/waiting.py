"""What it costs that clients are served in turn: a request that waits, beside one queue for all; and one that does not.

python -m benchmarks.waiting [--rounds N] [--requests N]

Three figures, of processor time in this process alone, hot in the cache, in rounds that take turns: a request put into
the broker's queues and taken out again, the same with one ordered queue for each service, and what is asked of the
queues when a worker is free.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from scale0.broker.core.connections import Connection
from scale0.broker.core.request import RoutedRequest
from scale0.broker.core.request_queues import RequestQueues
from scale0.kernel.clock import Now

SERVICE = "bench.slow"
OFFERED = frozenset((SERVICE,))
CLIENTS = (1, 10, 1_000)


def made(count: int, clients: int) -> list[RoutedRequest]:
    """Requests of so many clients, mixed."""
    handler: Any = None  # nothing is said to them
    origins = [Connection("frontend", str(n).encode(), handler, Now(0.0, 0.0)) for n in range(clients)]
    return [
        RoutedRequest(str(n), n, origins[n % clients], n, SERVICE, [b"x" * 100], 0.0, 60.0, False, 0)
        for n in range(count)
    ]


def in_turn(requests: list[RoutedRequest]) -> None:
    """As the broker does."""
    waiting = RequestQueues()
    for request in requests:
        waiting.room(request, len(requests))
        waiting.add(request)
    for _ in requests:
        request_ = waiting.next(OFFERED)
        if request_ is not None:
            waiting.served(request_)


def one_queue(requests: list[RoutedRequest]) -> None:
    """The oldest first, whoever asked; any may be taken out, as when its time is over."""
    queues: dict[str, OrderedDict[RoutedRequest, None]] = {}
    for request in requests:
        queue = queues.get(request.service)
        if queue is None:
            queue = queues[request.service] = OrderedDict()
        if len(queue) < len(requests):
            queue[request] = None
    for _ in requests:
        for service in OFFERED & queues.keys():
            queue = queues[service]
            request = next(iter(queue))
            del queue[request]
            if not queue:
                del queues[service]


def nobody_waits(requests: list[RoutedRequest]) -> None:
    """What a request that finds a free worker, and its end, ask of the queues."""
    waiting = RequestQueues()
    for _ in requests:
        if waiting:
            raise RuntimeError("nobody waits here")


def microseconds(work: Callable[[list[RoutedRequest]], None], requests: list[RoutedRequest]) -> float:
    start = time.process_time()
    work(requests)
    return (time.process_time() - start) / len(requests) * 1e6


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--rounds", type=int, default=15)
    words.add_argument("--requests", type=int, default=20_000)
    chosen = words.parse_args()
    print("µs for a request: median (least)")
    for clients in CLIENTS:
        requests = made(chosen.requests, clients)
        found: dict[str, list[float]] = {}
        for _ in range(chosen.rounds):
            for work in (in_turn, one_queue, nobody_waits):
                found.setdefault(work.__name__, []).append(microseconds(work, requests))
        more = [a - b for a, b in zip(found["in_turn"], found["one_queue"], strict=True)]
        told = ", ".join(f"{name} {statistics.median(all_):.2f} ({min(all_):.2f})" for name, all_ in found.items())
        print(f"{clients:5,} clients: {told}; in turn costs {statistics.median(more):.2f} more")


if __name__ == "__main__":
    main()
