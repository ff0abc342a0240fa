"""Many idle backends: what a broker costs for being connected to, and what a request costs among them.

Run as `python -m benchmarks.idle BACK COUNT`: it connects COUNT backends and obeys words on its standard input: `beat
N` sends N heartbeats for every backend as fast as they are answered; `idle S` keeps to the interval for S seconds.
One DEALER socket holds many connections: libzmq sends to them in turn, so the n-th message of a round is always the
n-th backend's, and each connection is a client of its own to the broker.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import zmq

PER_SOCKET = 1_000
JOIN_INTERVAL = 5.0
"""Asked for, so that the first do not die of silence while the last still join; 10,000 get as much anyway."""
MAGIC = b"SCALE0/1"


class Herd:
    """Some backends on one socket."""

    def __init__(self, context: Any, place: str, first: int, count: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set_hwm(0)
        self.socket.set(zmq.LINGER, 0)
        self.first, self.count = first, count
        self.interval = 1.0
        address = place.removeprefix("tcp://")
        for number in range(first + 1, first + count + 1):
            # libzmq connects only once to one endpoint; with a source address of its own, each is another.
            source = f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            self.socket.connect(f"tcp://{source}:0;{address}")

    def round(self, command: bytes, options: Any) -> None:
        """One message of every backend, and one answer to each."""
        for number in range(self.count):
            said = options(self.first + number) if callable(options) else options
            self.socket.send_multipart([MAGIC, command, said])
        self.collect(self.count)

    def collect(self, wanted: int) -> None:
        while wanted:
            if not self.socket.poll(60_000):
                raise RuntimeError(f"{wanted} answers are missing")
            answer = self.socket.recv_multipart()
            if answer[1] == b"READYOK":
                self.interval = max(self.interval, json.loads(answer[2])["heartbeat_interval"])
            elif answer[1] == b"DISCONNECTERROR":
                raise RuntimeError(repr(answer))
            wanted -= 1
        self.drain()

    def drain(self) -> None:
        while self.socket.poll(0):
            answer = self.socket.recv_multipart()
            if answer[1] == b"READYOK":
                self.interval = max(self.interval, json.loads(answer[2])["heartbeat_interval"])

    def beat(self) -> None:
        said = json.dumps({"time": time.time(), "config_version": 1}).encode()
        for _ in range(self.count):
            self.socket.send_multipart([MAGIC, b"HEARTBEAT", said])


def encode(**options: Any) -> bytes:
    return json.dumps(options).encode()


def join(herd: Herd) -> None:
    herd.round(b"CHECKCONFIG", lambda n: encode(config_type="json", identity=f"idle-{n}", services=["idle"]))
    herd.round(
        b"READY",
        lambda n: encode(services=["idle"], config_version=1, time=time.time(), heartbeat_interval=JOIN_INTERVAL),
    )


def keep_to_interval(herds: list[Herd], seconds: float) -> int:
    """Heartbeats spread over the interval, herd by herd in slices; how many were sent."""
    end, sent = time.monotonic() + seconds, 0
    slot = 0
    while time.monotonic() < end:
        herd = herds[slot % len(herds)]
        started = time.monotonic()
        herd.beat()
        sent += herd.count
        herd.drain()
        slot += 1
        pause = herd.interval / len(herds) - (time.monotonic() - started)
        if pause > 0:
            time.sleep(pause)
    return sent


def main(place: str, count: int) -> None:
    context: Any = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4_096)
    herds = [Herd(context, place, first, min(PER_SOCKET, count - first)) for first in range(0, count, PER_SOCKET)]
    for number, herd in enumerate(herds):
        join(herd)
        for other in herds[:number]:
            other.beat()
            other.drain()
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "beat":
            for _ in range(int(rest[0])):
                for herd in herds:
                    herd.beat()
                    herd.collect(herd.count)
            print(json.dumps({"interval": max(herd.interval for herd in herds)}), flush=True)
        elif word == "idle":
            sent = keep_to_interval(herds, float(rest[0]))
            print(json.dumps({"sent": sent, "interval": max(herd.interval for herd in herds)}), flush=True)
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
