"""One client that floods, and another that sends one request after another: `python -m benchmarks.run floods`.

Each kind of flood has a broker of its own. Calm and flooded runs alternate, and the medians of their quantiles are
compared: the flooded p99 may be at most twice the calm one, plus 5 ms.

Run as `python -m benchmarks.floods PLACE KIND COUNT`, this is the sender of a flood.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.ends import BODY, SERVICE
from benchmarks.networks import end, process, run_client, scale0_broker

ALLOWED_FACTOR = 2
ALLOWED_MORE_US = 5_000
ROUNDS = int(os.environ.get("FLOOD_ROUNDS", "3"))
REQUESTS = int(os.environ.get("FLOOD_REQUESTS", "500"))
"""Of the honest client in each run."""
WAITED_TASKS = 100
"""Tasks that an expensive call names."""
MAX_UNANSWERED_CALLS = 20_000

KINDS = {
    "HEARTBEAT": (100, 10_000),
    "CHECKCONFIG": (100,),
    "ping": (1, 100, 10_000),
    "echo": (1, 100, 10_000),
    "services": (100,),
    "status": (1_000,),
    "wait": (1_000,),
    "submit": (1, 1_000),
}
"""By kind: how many messages a BATCH has, or calls an array; 1: each alone."""
TITLES = {
    "ping": "REQUEST `scale0.ping`",
    "echo": "REQUEST of the honest client's own worker",
    "services": "REQUEST `scale0.services`",
    "status": "`client_task_status`",
    "wait": f"`client_task_wait` of {WAITED_TASKS} tasks",
    "submit": "`client_new_task`",
}
METHODS = {"status": "client_task_status", "wait": "client_task_wait", "submit": "client_new_task"}


def batches(kind: str, count: int) -> Iterator[list[bytes]]:
    """Messages of SCALE0/1."""
    import msgspec.msgpack

    options: dict[str, Any] = {"config_type": "json"} if kind == "CHECKCONFIG" else {}
    service = {"ping": "scale0.ping", "echo": SERVICE, "services": "scale0.services"}.get(kind)
    for number in itertools.count():
        if service:
            ids = range(number * count, (number + 1) * count)
            body = b"" if kind == "services" else BODY
            messages: list[Any] = [["REQUEST", {"service": service, "id": str(n), "timeout": 10}, body] for n in ids]
        else:
            messages = [[kind, options]] * count
        if count == 1:
            command, said, *bodies = messages[0]
            yield [b"SCALE0/1", command.encode(), json.dumps(said).encode(), *bodies]
        else:
            yield [b"SCALE0/1", b"BATCH", b"", msgspec.msgpack.encode(messages)]


def arrays(kind: str, count: int, client: str) -> Iterator[list[bytes]]:
    """Calls of JSON-RPC."""
    unknown = [f"unknown-{number}" for number in range(WAITED_TASKS)]
    params: list[Any] = {"status": [client, "unknown"], "wait": [client, unknown, 0]}.get(kind, [client, "flood.m", []])
    call = {"jsonrpc": "2.0", "method": "zerotask.broker." + METHODS[kind], "params": params, "id": 1}
    frame = json.dumps(call if count == 1 else [call] * count).encode()
    while True:
        yield [frame]


def send(place: str, kind: str, count: int) -> None:
    """Send as fast as the messages are taken; answers are discarded.

    The process has a low priority, as if it had a host of its own: its work is not what is measured. A sender of calls
    waits while very many are unanswered, because a broker disconnects a client that does not read."""
    import zmq

    os.nice(int(os.environ.get("FLOOD_NICE", "19")))
    socket: Any = zmq.Context().socket(zmq.DEALER)
    socket.connect(place)
    socket.send_multipart([b"SCALE0/1", b"CHECKCONFIG", b'{"config_type": "json", "batch": true}'])
    socket.recv_multipart()
    messages = batches(kind, count)
    if kind in METHODS:
        connect = {"jsonrpc": "2.0", "method": "zerotask.broker.client_connect", "params": ["flood"], "id": 0}
        socket.send(json.dumps(connect).encode())
        socket.recv_multipart()
        messages = arrays(kind, count, "flood")
    print("ready", flush=True)
    unanswered = 0
    for message in messages:
        socket.send_multipart(message)
        unanswered += count
        while socket.poll(0 if kind not in METHODS or unanswered < MAX_UNANSWERED_CALLS else 1_000):
            socket.recv_multipart(copy=False)
            unanswered -= count


def measure(kind: str, count: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {"calm": [], "flooded": []}
    sender = [sys.executable, "-m", "benchmarks.floods"]
    with scale0_broker() as (front, back, broker), process(*end("scale0-worker", back)):
        run_client("scale0-client", front, REQUESTS, 1)
        for _ in range(ROUNDS):
            runs["calm"].append(run_client("scale0-client", front, REQUESTS, 1))
            with process(*sender, front, kind, str(count)):
                time.sleep(0.5)
                runs["flooded"].append(run_client("scale0-client", front, REQUESTS, 1))
                memory = psutil.Process(broker.pid).memory_info().rss / 1e6
            time.sleep(1.0)
    found: dict[str, Any] = {
        f"{name} {share}": statistics.median(run[share] for run in some)
        for name, some in runs.items()
        for share in ("p50", "p99")
    }
    allowed = ALLOWED_FACTOR * found["calm p99"] + ALLOWED_MORE_US
    return {
        **found,
        "p99 ratio": found["flooded p99"] / found["calm p99"],
        "MB": memory,
        "holds": found["flooded p99"] <= allowed,
    }


def floods() -> dict[str, Any]:
    """Honest p50 and p99 in µs, calm and beside each kind of flood; whether p99 is within twice the calm one + 5 ms."""
    found: dict[str, Any] = {}
    wanted = os.environ.get("FLOOD_KINDS", "").split() or list(KINDS)
    for kind in wanted:
        for count in KINDS[kind]:
            by = "one by one" if count == 1 else f"{'arrays' if kind in METHODS else 'BATCHes'} of {count:,}"
            row = measure(kind, count)
            found[f"{TITLES.get(kind, kind)}, {by}"] = row
            print(f"  {kind} {count}: {row}", file=sys.stderr)
    return found


if __name__ == "__main__":
    send(sys.argv[1], sys.argv[2], int(sys.argv[3]))
