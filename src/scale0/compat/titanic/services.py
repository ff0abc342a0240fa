"""RFC 9, Titanic: the three services for stored requests, and the encoding of frames as JSON for the store. Invariants:
every call gets exactly one reply, whatever it contains; `200` with a UUID is sent only after the request is on disk;
the UUID gives access to a request, with CURVE together with the key that stored it, so it must not be guessable."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.compat.majordomo.broker_adapter import MajordomoAdapter
from scale0.compat.majordomo.frames import read_service
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_reserved

if TYPE_CHECKING:
    from scale0.compat.titanic.stored_requests import TaskRequestStore

TITANIC_REQUEST: Final = "titanic.request"
TITANIC_REPLY: Final = "titanic.reply"
TITANIC_CLOSE: Final = "titanic.close"
TITANIC_SERVICES: Final = frozenset({TITANIC_REQUEST, TITANIC_REPLY, TITANIC_CLOSE})

DONE: Final = b"200"
PENDING: Final = b"300"
UNKNOWN: Final = b"400"
"""An unknown UUID, or any other error that a retry cannot fix."""
FAILED: Final = b"500"
"""The request cannot be stored now; for a reply: the service failed."""

_UUID: Final = re.compile(rb"[0-9A-Fa-f]{32}")

Then = Callable[[bytes, Sequence[bytes], Now, Effects], None]
"""Called with the status, and with the frames of the reply if it is DONE."""


class Titanic:
    def __init__(self, adapter: MajordomoAdapter, store: TaskRequestStore) -> None:
        self._adapter = adapter
        self._store = store

    def receive(
        self, connection: Connection, id_: str, service: str, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        def answer(status: bytes, frames: Sequence[bytes], _now: Now, out: Effects) -> None:
            # Always after the commit, so that everything that the reply states is on disk.
            out.promise(connection, ("REPLY", {"id": id_, "service": service}, status, *frames))

        try:
            if service == TITANIC_REQUEST:
                target = self._read_target(bodies)
                if not self._adapter.may_store(connection, target, now, effects):
                    answer(UNKNOWN, (), now, effects)
                    return
                uuid = self._store.keep(target, bodies[1:], connection.public_key, now, effects)
                if uuid is None:
                    answer(FAILED, (), now, effects)
                else:
                    answer(DONE, (uuid.encode(),), now, effects)
            elif service == TITANIC_REPLY:
                self._store.fetch(read_uuid(bodies), connection.public_key, answer, now, effects)
            else:
                self._store.forget(read_uuid(bodies), connection.public_key, answer, now, effects)
        except Refusal as refusal:
            answer(UNKNOWN, (), now, effects)
            self._adapter.reject(connection, refusal.code, refusal.message, now, effects)

    def _read_target(self, bodies: Sequence[bytes]) -> str:
        """Returns the target service; raises `Refusal` for a name that no backend can offer."""
        if len(bodies) < 2:
            raise Refusal(codes.MALFORMED, "titanic.request needs a service and a body")
        name = read_service(bodies[0], self._adapter.limits.max_service_bytes)
        if is_reserved(name):
            raise Refusal(codes.MALFORMED, f"{name} is a reserved name")
        return name


def read_uuid(bodies: Sequence[bytes]) -> str:
    if len(bodies) != 1 or _UUID.fullmatch(bodies[0]) is None:
        raise Refusal(codes.MALFORMED, "expected one frame, a UUID of 32 hexadecimal digits")
    return bodies[0].decode().lower()


class StoredFrames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as JSON: each frame in base64, under a key that identifies the format."""

    titanic: list[bytes]


_read: Final = msgspec.json.Decoder(StoredFrames)


def pack_frames(bodies: Sequence[bytes]) -> bytes:
    return msgspec.json.encode(StoredFrames(list(bodies)))


def read_frames(data: bytes) -> list[bytes] | None:
    """Returns the frames; None if the data has another format."""
    try:
        return _read.decode(data).titanic
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
