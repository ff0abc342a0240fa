"""MDP/Worker: READY, replies, heartbeats in both directions, and DISCONNECT for protocol violations. Invariants: a
worker holds one request at a time, and only replies to that one are accepted; after DISCONNECT in either direction,
nothing is sent until the worker sends READY again; every registered worker has one heartbeat timer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from scale0.broker.core.connections import Connection
from scale0.compat.majordomo.broker_adapter import MajordomoAdapter
from scale0.compat.majordomo.frames import WorkerForm, read_answer, read_service, write_request
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.errors import Refusal
from scale0.kernel.names import MAX_IDENTITY_CHARS, is_reserved
from scale0.transport.core.sockets import BACKEND

MISSED_HEARTBEATS: Final = 3
"""A worker that sends nothing for this many intervals is dead."""
HUSH_SECONDS: Final = 30.0
"""How long a disconnected connection is remembered, so that its late messages are ignored."""
IDENTITY_PREFIX: Final = "mdp-"
MEANS_START_AGAIN: Final = frozenset({"DISCONNECTERROR", "FORCENEGOTIATE"})
"""Broker commands that become DISCONNECT for a Majordomo worker."""


class MajordomoWorkers:
    """All workers of one version."""

    def __init__(self, form: WorkerForm, adapter: MajordomoAdapter) -> None:
        self._form = form
        self._adapter = adapter
        self._beats: dict[Connection, int] = {}
        """The timer bucket of each worker's next heartbeat."""
        self._hushed: set[Connection] = set()

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Handles one message without routing id and delimiter."""
        if not self._adapter.serving:
            return
        try:
            if connection.socket != BACKEND:
                raise Refusal(codes.NOT_ALLOWED, "workers are served on the backend socket")
            self._act(connection, frames, now, effects)
        except Refusal as refusal:
            self._dismiss(connection, refusal, now, effects)

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """Encodes requests and DISCONNECT; everything else is dropped, because these workers do not know it."""
        out: list[list[bytes]] = []
        for message in messages:
            if isinstance(message, list):
                out.append(message)
            elif message[0] == "REQUEST":
                out.append(write_request(self._form, message[1]["id"], message[2:]))
            elif message[0] in MEANS_START_AGAIN:
                out.append([self._form.header, self._form.disconnect])
        return out

    def _act(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        form = self._form
        command = frames[1] if len(frames) > 1 else b""
        if command == form.ready:
            check_length(frames, 3)
            self._ready(connection, frames[2], now, effects)
        elif command == form.heartbeat:
            check_length(frames, 2)
            self._heartbeat(connection, now)
        elif command == form.disconnect:
            check_length(frames, 2)
            self._remove(connection, now, effects)
        elif command and command in (form.partial, form.final):
            # RFC 18 has no leading empty frame: a worker that sends one uses the dialect.
            bodiless = connection.delimiter and bool(form.partial)
            id_, bodies = read_answer(frames, bodiless)
            self._answer(connection, command == form.final, id_, bodies, now, effects)
        elif command == form.request:
            raise Refusal(codes.MALFORMED, "a worker must not send REQUEST")
        else:
            raise Refusal(codes.UNKNOWN_COMMAND, "no such command")

    def _ready(self, connection: Connection, service: bytes, now: Now, effects: Effects) -> None:
        adapter = self._adapter
        self._hushed.discard(connection)
        name = read_service(service, adapter.limits.max_service_bytes)
        if is_reserved(name):
            raise Refusal(codes.NOT_ALLOWED, f"{name} is a reserved name")
        if adapter.is_registered(connection):
            raise Refusal(codes.MALFORMED, "READY was sent twice on one connection")
        self._cancel(connection)
        adapter.register(connection, identity_of(connection.routing_id), name, now, effects)
        self._schedule_liveness(connection, now)
        self._arm(connection, now)

    def _heartbeat(self, connection: Connection, now: Now) -> None:
        if self._knows(connection):
            self._adapter.heartbeat(connection, now)
            self._schedule_liveness(connection, now)

    def _answer(
        self, connection: Connection, final: bool, id_: str, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        if not self._knows(connection):
            return
        if not self._adapter.holds(connection, id_):
            raise Refusal(codes.MALFORMED, "REPLY without an open request")
        if final:
            self._adapter.reply(connection, id_, bodies, now, effects)
        else:
            self._adapter.partial(connection, id_, bodies, now, effects)

    def _knows(self, connection: Connection) -> bool:
        """True for a registered worker; False for one that left and whose last messages are still arriving."""
        if connection in self._beats and self._adapter.is_registered(connection):
            return True
        if connection in self._hushed:
            return False
        raise Refusal(codes.MALFORMED, "READY must come first")

    def _dismiss(self, connection: Connection, refusal: Refusal, now: Now, effects: Effects) -> None:
        """Handles a protocol violation: counts it, requeues the worker's requests, and sends DISCONNECT once."""
        self._adapter.reject(connection, refusal.code, refusal.message, now, effects)
        if connection not in self._hushed:
            effects.send(connection, [self._form.header, self._form.disconnect])
        self._remove(connection, now, effects)

    def _remove(self, connection: Connection, now: Now, effects: Effects) -> None:
        self._cancel(connection)
        self._adapter.remove(connection, now, effects)
        if connection not in self._hushed:
            self._hushed.add(connection)
            self._adapter.timers.add((self._resume, connection), now.mono + HUSH_SECONDS)

    def _resume(self, connection: Connection, _now: Now, _step: Effects) -> None:
        self._hushed.discard(connection)

    def _schedule_liveness(self, connection: Connection, now: Now) -> None:
        interval = self._adapter.limits.mdp_heartbeat_interval
        self._adapter.judge(connection, interval, MISSED_HEARTBEATS * interval, now)

    def _arm(self, connection: Connection, now: Now) -> None:
        when = now.mono + self._adapter.limits.mdp_heartbeat_interval
        self._beats[connection] = self._adapter.timers.add((self._send_heartbeat, connection), when)

    def _cancel(self, connection: Connection) -> None:
        bucket = self._beats.pop(connection, None)
        if bucket is not None:
            self._adapter.timers.remove((self._send_heartbeat, connection), bucket)

    def _send_heartbeat(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Sends a HEARTBEAT; stops when the worker is gone."""
        if not self._adapter.is_registered(connection):
            self._beats.pop(connection, None)
            return
        effects.send(connection, [self._form.header, self._form.heartbeat])
        self._arm(connection, now)


def check_length(frames: Sequence[bytes], wanted: int) -> None:
    if len(frames) != wanted:
        raise Refusal(codes.MALFORMED, "too many or too few frames")


def identity_of(routing_id: bytes) -> str:
    """Returns a worker's name for lists and events; a routing id that is too long is hashed."""
    shown = routing_id.hex()
    if len(shown) > MAX_IDENTITY_CHARS - len(IDENTITY_PREFIX):
        shown = hashlib.sha256(routing_id).hexdigest()
    return IDENTITY_PREFIX + shown
