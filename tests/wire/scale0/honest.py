"""A caller and a backend that do honest work on a thread while somebody else misbehaves.

A request that is not answered, or answered wrongly, fails the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.fakes.messages import MAGIC
from tests.wire.scale0.raw import raws, unique


@contextmanager
def honest_pair(endpoints: dict[str, str]) -> Iterator[list[float]]:
    """A caller and a backend that work all the while: every request must be answered; the times it took."""
    times: list[float] = []
    faults: list[str] = []
    stop = threading.Event()
    up = threading.Event()

    def work() -> None:
        with raws(endpoints) as net:
            service = unique("honest")
            backend, caller = net.backend(service), net.frontend()
            up.set()
            while not stop.is_set():
                start = time.monotonic()
                caller.say("REQUEST", {"service": service, "id": len(times)}, b"ping")
                try:
                    backend.answer(b"pong")
                    heard = caller.hear()
                except AssertionError as error:
                    faults.append(str(error))
                    return
                if heard.bodies != [b"pong"] or heard.options["id"] != len(times):
                    faults.append(repr(heard))
                times.append(time.monotonic() - start)

    thread = threading.Thread(target=work)
    thread.start()
    assert up.wait(10)
    try:
        yield times
    finally:
        stop.set()
        thread.join(20)
    assert not faults, faults
    assert times


def batch_of(*messages: object) -> list[bytes]:
    return [MAGIC, b"BATCH", b"", msgspec.msgpack.encode(messages)]


def packed(data: bytes) -> list[bytes]:
    return [MAGIC, b"BATCH", b"", data]
