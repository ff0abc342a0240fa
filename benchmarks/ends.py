"""The ends that the benchmarks put on each network: a worker and a client for each, in processes of their own.

Run as `python -m benchmarks.ends KIND ROLE PLACE…`. A worker prints `ready`; a client prints one JSON line of results.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any

BODY = b"x" * 100
SERVICE = "bench.echo"


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1e6 for share in (50, 99)}


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def scale0_worker(place: str) -> None:
    import scale0

    worker = scale0.Worker(place)

    @worker.service(SERVICE, slots=1000, raw=True)
    def echo(body: bytes) -> bytes:
        return body

    worker.start()
    worker.wait_until_up()
    print("ready", flush=True)
    worker.run()


def scale0_client(place: str, count: int, in_flight: int) -> None:
    import scale0

    with scale0.Client(place) as net:
        net.request(SERVICE, BODY)
        if in_flight == 1:
            times = []
            for _ in range(count):
                start = time.perf_counter()
                net.request(SERVICE, BODY)
                times.append(time.perf_counter() - start)
            say(**quantiles(times))
            return
        start = time.perf_counter()
        answered = sum(1 for _ in net.map(SERVICE, (BODY for _ in range(count)), in_flight=in_flight, raw=True))
        seconds = time.perf_counter() - start
    say(rate=answered / seconds)


def scale0_async_client(place: str, count: int, in_flight: int) -> None:
    import uvloop

    import scale0

    async def run() -> None:
        async with scale0.AsyncClient(place) as net:
            await net.request(SERVICE, BODY)

            async def one(times: int) -> None:
                for _ in range(times):
                    await net.request(SERVICE, BODY)

            start = time.perf_counter()
            await asyncio.gather(*(one(count // in_flight) for _ in range(in_flight)))
            say(rate=count / (time.perf_counter() - start))

    uvloop.run(run())


def proxy(front: str, back: str) -> None:
    """libzmq's own proxy in C: nothing is decoded, nothing is known."""
    import zmq

    context: Any = zmq.Context()
    frontend, backend = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    frontend.bind(front)
    backend.bind(back)
    print("ready", flush=True)
    zmq.proxy(frontend, backend)


def proxy_worker(place: str) -> None:
    import zmq

    socket: Any = zmq.Context().socket(zmq.DEALER)
    socket.connect(place)
    print("ready", flush=True)
    while True:
        socket.send_multipart(socket.recv_multipart())


def proxy_client(place: str, count: int, in_flight: int) -> None:
    import zmq

    socket: Any = zmq.Context().socket(zmq.DEALER)
    socket.connect(place)
    socket.send_multipart([b"", BODY])
    socket.recv_multipart()
    if in_flight == 1:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            socket.send_multipart([b"", BODY])
            socket.recv_multipart()
            times.append(time.perf_counter() - start)
        say(**quantiles(times))
        return
    start = time.perf_counter()
    for _ in range(in_flight):
        socket.send_multipart([b"", BODY])
    for _ in range(count - in_flight):
        socket.recv_multipart()
        socket.send_multipart([b"", BODY])
    for _ in range(in_flight):
        socket.recv_multipart()
    say(rate=count / (time.perf_counter() - start))


def nats_worker(place: str) -> None:
    import nats
    import uvloop

    async def run() -> None:
        connection = await nats.connect(place)

        async def echo(message: Any) -> None:
            await message.respond(message.data)

        await connection.subscribe(SERVICE, cb=echo)
        await connection.flush()
        print("ready", flush=True)
        await asyncio.Event().wait()

    uvloop.run(run())


def nats_client(place: str, count: int, in_flight: int) -> None:
    import nats
    import uvloop

    async def run() -> None:
        connection = await nats.connect(place)
        await connection.request(SERVICE, BODY, timeout=5)
        if in_flight == 1:
            times: deque[float] = deque()
            for _ in range(count):
                start = time.perf_counter()
                await connection.request(SERVICE, BODY, timeout=5)
                times.append(time.perf_counter() - start)
            say(**quantiles(list(times)))
            return

        async def one(times: int) -> None:
            for _ in range(times):
                await connection.request(SERVICE, BODY, timeout=30)

        start = time.perf_counter()
        await asyncio.gather(*(one(count // in_flight) for _ in range(in_flight)))
        say(rate=count / (time.perf_counter() - start))

    uvloop.run(run())


ENDS: dict[str, Any] = {
    "scale0-worker": scale0_worker,
    "scale0-client": scale0_client,
    "scale0-async-client": scale0_async_client,
    "proxy": proxy,
    "proxy-worker": proxy_worker,
    "proxy-client": proxy_client,
    "nats-worker": nats_worker,
    "nats-client": nats_client,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    ENDS[name](*(int(word) if word.isdigit() else word for word in arguments))
