"""A client from outside the package: ZMTP 3 by hand over TCP, CURVE by pyzmq, and JSON; nothing of scale0."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import zmq

MAGIC: Final = b"SCALE0/1"
SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
SECONDS: Final = 15.0
"""How long an answer may take on a busy machine."""
TEXT_CHARACTERS: Final = 80
MORE, LONG, COMMAND = 1, 2, 4


class Answer(NamedTuple):
    """One message of SCALE0/1."""

    command: str
    options: dict[str, Any]
    bodies: list[bytes]

    @property
    def code(self) -> int:
        return int(self.options.get("code", 0))

    @property
    def text(self) -> str:
        """In a few words, for the page."""
        message = str(self.options.get("message", ""))
        message = message if len(message) <= TEXT_CHARACTERS else f"{message[:TEXT_CHARACTERS]}…"
        return " ".join(word for word in (self.command, str(self.code or ""), message) if word)


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01") -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body


def command(name: bytes, body: bytes = b"") -> bytes:
    return frame(bytes((len(name),)) + name + body, COMMAND)


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    pairs = ((b"Socket-Type", socket_type), (b"Identity", identity))
    return command(b"READY", b"".join(bytes((len(n),)) + n + len(v).to_bytes(4, "big") + v for n, v in pairs))


def message(frames: Sequence[bytes]) -> bytes:
    return b"".join(frame(body, MORE) for body in frames[:-1]) + frame(frames[-1])


def address_of(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


class Connection:
    """Sends and receives frames; the messages of both protocols are made here."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def send(self, frames: Sequence[bytes]) -> None:
        raise NotImplementedError

    def receive(self, seconds: float = SECONDS) -> list[bytes] | None:
        """The next frames; None if nothing came in time. Raises ConnectionError at the end of the connection."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def say(self, word: str, options: dict[str, Any] | bytes = b"", *bodies: bytes) -> None:
        packed = options if isinstance(options, bytes) else json.dumps(options).encode()
        self.send([MAGIC, word.encode(), packed, *bodies])

    def hear(self, seconds: float = SECONDS) -> Answer | None:
        """The next message of SCALE0/1; others are dropped."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            frames = self.receive(left)
            if frames is None:
                return None
            if frames and not frames[0]:
                frames = frames[1:]
            if len(frames) >= 2 and frames[0] == MAGIC:
                options = json.loads(frames[2] or b"{}") if len(frames) > 2 else {}
                return Answer(frames[1].decode(), options, frames[3:])
        return None

    def hear_one_of(self, *commands: str, seconds: float = SECONDS) -> Answer | None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            answer = self.hear(left)
            if answer is None or answer.command in commands:
                return answer
        return None

    def ask(self, word: str, options: dict[str, Any] | bytes = b"", *bodies: bytes, seconds: float = SECONDS) -> Answer:
        """One message and the next answer; `silence` if there is none, `closed` if the connection ended."""
        try:
            self.say(word, options, *bodies)
            return self.hear(seconds) or Answer("silence", {}, [])
        except OSError:
            return Answer("closed", {}, [])

    def ping(self, seconds: float = SECONDS) -> bool:
        number = f"ping-{next(self._numbers)}"
        try:
            self.say("REQUEST", {"service": "scale0.ping", "id": number})
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                answer = self.hear_one_of("REPLY", seconds=left)
                if answer is None or answer.options.get("id") == number:
                    return answer is not None
        except OSError:
            pass
        return False

    def manage(self, word: str, seconds: float = SECONDS, **options: Any) -> Answer:
        """One management command and its MANAGEMENTREP, or DISCONNECTERROR."""
        try:
            self.say("MANAGEMENTREQ", {"command": word, "id": f"m-{next(self._numbers)}", **options})
            found = self.hear_one_of("MANAGEMENTREP", "DISCONNECTERROR", seconds=seconds)
        except OSError:
            return Answer("closed", {}, [])
        return found or Answer("silence", {}, [])

    def call(self, method: str, *params: Any, seconds: float = SECONDS) -> dict[str, Any] | None:
        """One JSON-RPC call and its answer, which has `result` or `error`; None: no answer in time."""
        number = next(self._numbers)
        request = {"jsonrpc": "2.0", "method": f"zerotask.broker.{method}", "params": params, "id": number}
        self.send([json.dumps(request).encode()])
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            frames = self.receive(left)
            if frames is None:
                return None
            if frames[0][:1] == b"{":
                answer: dict[str, Any] = json.loads(frames[0])
                if answer.get("id") == number:
                    return answer
        return None

    def register(self, identity: str, *services: str, **more: Any) -> Answer:
        """CHECKCONFIG and READY; the answer to READY, or to CHECKCONFIG if it is not a configuration."""
        first = self.ask("CHECKCONFIG", {"config_type": "json", "identity": identity})
        if first.command not in ("CONFIG", "CONFIGACK"):
            return first
        version = first.options["config_version"]
        options = {"services": list(services), "time": time.time(), "config_version": version, **more}
        return self.ask("READY", options)


class Raw(Connection):
    """ZMTP 3 with the mechanism NULL, written by hand."""

    def __init__(
        self, endpoint: str, identity: bytes = b"", socket_type: bytes = b"DEALER", seconds: float = SECONDS
    ) -> None:
        super().__init__()
        self.socket = dial(endpoint, seconds)
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        try:
            self.socket.sendall(greeting() + ready(socket_type, identity))
            if not self._need(64, time.monotonic() + seconds):
                raise TimeoutError(f"{endpoint} sent no greeting within {seconds:.0f} s")
            del self._buffer[:64]
        except BaseException:
            self.socket.close()
            raise

    def send(self, frames: Sequence[bytes]) -> None:
        self.send_bytes(message(frames))

    def send_bytes(self, data: bytes) -> None:
        self.socket.settimeout(SECONDS)
        self.socket.sendall(data)

    def receive(self, seconds: float = SECONDS) -> list[bytes] | None:
        end = time.monotonic() + seconds
        while True:
            found = self._next_frame(end)
            if found is None:
                return None
            flags, body = found
            if flags & COMMAND:
                if body[:5] == b"\x04PING":
                    self.send_bytes(command(b"PONG", body[7:]))
                continue
            self._frames.append(body)
            if not flags & MORE:
                whole, self._frames = self._frames, []
                return whole

    def _next_frame(self, end: float) -> tuple[int, bytes] | None:
        if not self._need(2, end):
            return None
        head = 9 if self._buffer[0] & LONG else 2
        if not self._need(head, end):
            return None
        size = int.from_bytes(self._buffer[1:head], "big")
        if not self._need(head + size, end):
            return None
        flags, body = self._buffer[0], bytes(self._buffer[head : head + size])
        del self._buffer[: head + size]
        return flags, body

    def _need(self, size: int, end: float) -> bool:
        """True once so many bytes are in the buffer."""
        while len(self._buffer) < size:
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(65_536)
            except TimeoutError:
                return False
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            self._buffer += more
        return True

    def close(self) -> None:
        self.socket.close()


class Pair(NamedTuple):
    """Both halves of a key, in Z85."""

    public: bytes
    secret: bytes


class Keyed(Connection):
    """A DEALER with CURVE, by pyzmq; without a pair of keys it uses NULL."""

    def __init__(
        self, endpoint: str, pair: Pair | None = None, server_key: bytes = b"", routing_id: bytes = b""
    ) -> None:
        super().__init__()
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.IMMEDIATE, 0)
        if routing_id:
            self.socket.set(zmq.ROUTING_ID, routing_id)
        if pair is not None:
            self.socket.set(zmq.CURVE_SECRETKEY, pair.secret)
            self.socket.set(zmq.CURVE_PUBLICKEY, pair.public)
            self.socket.set(zmq.CURVE_SERVERKEY, server_key)
        self.socket.connect(endpoint)

    def send(self, frames: Sequence[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(list(frames), zmq.NOBLOCK)

    def receive(self, seconds: float = SECONDS) -> list[bytes] | None:
        if not self.socket.poll(max(0, round(seconds * 1000))):
            return None
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close(linger=0)


def new_pair() -> Pair:
    return Pair(*zmq.curve_keypair())


def dial(endpoint: str, seconds: float = SECONDS) -> socket.socket:
    """A TCP connection on which nothing was sent."""
    made = socket.create_connection(address_of(endpoint), seconds)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def closed_within(made: socket.socket, seconds: float) -> float | None:
    """Seconds until the other end closed the connection; None if it did not. What it sends is dropped."""
    began = time.monotonic()
    try:
        while (left := began + seconds - time.monotonic()) > 0:
            made.settimeout(left)
            if not made.recv(65_536):
                return time.monotonic() - began
    except TimeoutError:
        return None
    except OSError:
        return time.monotonic() - began
    return None


@contextlib.contextmanager
def closing(*connections: Connection) -> Iterator[None]:
    """Closes them at the end of the block."""
    try:
        yield
    finally:
        for connection in connections:
            connection.close()
