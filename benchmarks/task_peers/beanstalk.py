"""beanstalkd, spoken to by plain sockets, so that no client library stands in the way.

Commands are sent ahead: a worker's next reserve goes out with its delete. The protocol does not allow more: only the
connection that reserved a job may delete it.
"""

from __future__ import annotations

import socket
import threading
import time

from benchmarks.task_peers.shared import (
    IDLE_QUEUE,
    PAYLOAD,
    QUEUE,
    RESULT_SECONDS,
    main,
    take,
)

REPLIES = "bench-replies"
AHEAD = 200
"""Puts that are sent before the first of them is acknowledged."""
PUT = b"put 0 0 60 %d\r\n%s\r\n"


class Connection:
    """One connection: what is sent, and the answers line by line."""

    def __init__(self, place: str, *, use: str = "default", watch: str = "default") -> None:
        host, _, port = place.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), RESULT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self.ask(f"use {use}\r\nwatch {watch}\r\n".encode())
        self.line(b"USING")
        self.line(b"WATCHING")

    def ask(self, commands: bytes) -> None:
        self._socket.sendall(commands)

    def line(self, expected: bytes) -> bytes:
        """The next answer's first line, which must start with `expected`."""
        line = self._answers.readline()
        if not line.startswith(expected):
            raise RuntimeError(f"expected {expected!r}, got {line!r}")
        return line

    def job(self) -> tuple[bytes, bytes]:
        """The id and body of the job that a reserve gave."""
        _, number, size = self.line(b"RESERVED").split()
        body = self._answers.read(int(size) + 2)
        return number, body[:-2]


def worker(place: str) -> None:
    queue = Connection(place, use=REPLIES, watch=QUEUE)
    print("ready", flush=True)
    queue.ask(b"reserve\r\n")
    while True:
        number, body = queue.job()
        # The result is stored before the task is forgotten.
        queue.ask(PUT % (len(body), body) + b"delete %s\r\nreserve\r\n" % number)
        queue.line(b"INSERTED")
        queue.line(b"DELETED")


def submit(queue: Connection, count: int) -> None:
    body = PAYLOAD.encode()
    put = PUT % (len(body), body)
    queue.ask(put * min(count, AHEAD))
    for number in range(count):
        queue.line(b"INSERTED")
        if number + AHEAD < count:
            queue.ask(put)


def fetch(replies: Connection, count: int) -> None:
    replies.ask(b"reserve\r\n")
    for left in range(count - 1, -1, -1):
        number, _ = replies.job()
        replies.ask(b"delete %s\r\n" % number + (b"reserve\r\n" if left else b""))
        replies.line(b"DELETED")


def client(place: str, measure: str, count: int) -> None:
    queue = Connection(place, use=QUEUE if measure != "submit" else IDLE_QUEUE)
    replies = Connection(place, watch=REPLIES)

    def through(count: int) -> None:
        submitting = threading.Thread(target=submit, args=(queue, count), daemon=True)
        submitting.start()
        fetch(replies, count)
        submitting.join()

    def one() -> float:
        start = time.perf_counter()
        submit(queue, 1)
        replies.ask(b"reserve\r\n")
        number, _ = replies.job()
        seconds = time.perf_counter() - start
        replies.ask(b"delete %s\r\n" % number)
        replies.line(b"DELETED")
        return seconds

    take(measure, count, lambda count: submit(queue, count), through, one)


if __name__ == "__main__":
    main(worker, client)
