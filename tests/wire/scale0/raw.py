"""REQ and DEALER sockets without any client library: the test writes the frames.

Whatever is waited for has a deadline; nothing sleeps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from tests.fakes.messages import MAGIC, Message, decode
from tests.fakes.waiting import PATIENCE_SECONDS

MOMENT_SECONDS = 0.3
"""How long silence is listened to."""

_numbers = itertools.count(1)


def unique(word: str) -> str:
    """A name that no other test of this process uses."""
    return f"{word}-{next(_numbers)}"


class Raw:
    """One connection to a broker."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, kind: int, delimiter: bool) -> None:
        socket = context.socket(kind)
        socket.set(zmq.LINGER, 0)
        self.adopt(socket, delimiter and kind == zmq.DEALER)
        socket.connect(endpoint)

    def adopt(self, socket: zmq.Socket[bytes], delimiter: bool = False) -> None:
        """Type on this socket."""
        self.socket = socket
        self.socket.set(zmq.SNDHWM, 0)
        self.delimiter = delimiter
        self._heard: deque[Message] = deque()

    def frames(self, *frames: bytes) -> None:
        """Send these very frames. Where our key was refused, libzmq has nobody to send them to: they go nowhere."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([b"", *frames] if self.delimiter else list(frames), zmq.NOBLOCK)

    def say(self, command: str, options: dict[str, Any] | bytes | None = None, *bodies: bytes) -> None:
        """One message, its options in JSON."""
        packed = options if isinstance(options, bytes) else json.dumps(options).encode() if options else b""
        self.frames(MAGIC, command.encode(), packed, *bodies)

    def batch(self, *messages: list[Any]) -> None:
        """Many messages in one."""
        self.frames(MAGIC, b"BATCH", b"", msgspec.msgpack.encode(messages))

    def receive(self, seconds: float = PATIENCE_SECONDS) -> list[bytes] | None:
        """The next frames as they came, the delimiter included; None when nothing came in time."""
        if not self.socket.poll(max(0, round(seconds * 1000))):
            return None
        return self.socket.recv_multipart()

    def hear(self, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message, out of its batch; the test fails when nothing comes."""
        heard = self.hear_or_none(seconds)
        assert heard is not None, f"nothing was heard for {seconds} s"
        return heard

    def hear_or_none(self, seconds: float = PATIENCE_SECONDS) -> Message | None:
        """The next message, or None when nothing comes."""
        if not self._heard:
            frames = self.receive(seconds)
            if frames is None:
                return None
            if self.delimiter:
                assert frames[0] == b"", "whoever sends a delimiter gets one"
                frames = frames[1:]
            assert frames[0] == MAGIC, frames
            self._heard.extend(decode(frames))
        return self._heard.popleft()

    def hear_until(self, *commands: str, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message that is one of these; others are passed over."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            heard = self.hear_or_none(left)
            if heard is not None and heard.command in commands:
                return heard
        raise AssertionError(f"none of {commands} was heard for {seconds} s")

    def silent(self, seconds: float = MOMENT_SECONDS) -> bool:
        """True if nothing comes for a moment."""
        return not self._heard and self.receive(seconds) is None

    def ask(self, command: str, options: dict[str, Any] | bytes | None = None, *bodies: bytes) -> Message:
        """Say one thing, hear one thing."""
        self.say(command, options, *bodies)
        return self.hear()

    def request(self, service: str, body: bytes = b"", id_: str | int = 1, **options: Any) -> Message:
        """One request and what comes of it."""
        return self.ask("REQUEST", {"service": service, "id": id_, **options}, body)

    def check(self, identity: str | None = None, **options: Any) -> Message:
        """CHECKCONFIG and its answer."""
        named = {} if identity is None else {"identity": identity}
        return self.ask("CHECKCONFIG", {"config_type": "json", **named, **options})

    def ready(self, *services: str, identity: str | None = None, **options: Any) -> Message:
        """CHECKCONFIG, READY and the READYOK."""
        version = self.check(identity).options["config_version"]
        said = {"services": list(services), "time": time.time(), "config_version": version, **options}
        heard = self.ask("READY", said)
        assert heard.command == "READYOK", heard
        return heard

    def manage(self, command: str, auth: dict[str, Any], body: bytes = b"", **arguments: Any) -> Message:
        """One command of management and its answer."""
        id_ = unique("m")
        bodies = (body,) if body else ()
        self.say("MANAGEMENTREQ", {"command": command, "id": id_, **auth, **arguments}, *bodies)
        heard = self.hear_until("MANAGEMENTREP", "DISCONNECTERROR")
        assert heard.options.get("id") == id_, heard
        return heard

    def answer(self, body: bytes = b"done", seconds: float = PATIENCE_SECONDS) -> Message:
        """As a backend: take the next request and reply to it."""
        asked = self.hear_until("REQUEST", seconds=seconds)
        self.say("REPLY", {"id": asked.options["id"]}, body)
        return asked

    def close(self) -> None:
        """Gone without a word."""
        self.socket.close(linger=0)


class Raws:
    """Makes connections to one broker, and closes them all."""

    def __init__(self, endpoints: dict[str, str]) -> None:
        self.endpoints = endpoints
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4_096)
        self._made: list[Any] = []

    def __call__(self, socket_name: str, kind: int = zmq.DEALER, delimiter: bool = False) -> Raw:
        """A new connection to one of the broker's sockets."""
        raw = Raw(self.context, self.endpoints[socket_name], kind, delimiter)
        self._made.append(raw)
        return raw

    def frontend(self) -> Raw:
        return self("frontend")

    def backend(self, *services: str, **options: Any) -> Raw:
        """A backend that is ready."""
        raw = self("backend")
        raw.ready(*services, **options)
        return raw

    def subscriber(self, socket_name: str) -> zmq.Socket[bytes]:
        """A SUB socket that hears everything."""
        socket = self.context.socket(zmq.SUB)
        socket.set(zmq.SUBSCRIBE, b"")
        socket.connect(self.endpoints[socket_name])
        self._made.append(socket)
        return socket

    def close(self) -> None:
        for made in self._made:
            made.close(*(() if isinstance(made, Raw) else (0,)))
        self.context.term()


@contextmanager
def raws(endpoints: dict[str, str]) -> Iterator[Raws]:
    """Connections that are all closed in the end."""
    made = Raws(endpoints)
    try:
        yield made
    finally:
        made.close()
