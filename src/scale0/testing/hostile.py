"""A hostile client: it says whatever a broker should not believe.

Lives here: malformed, forged and untimely messages. Never here: what a broker must make of them; the checkers see
whether anybody else was harmed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.state import BACKEND, FRONTEND
from scale0.broker.wire import MAGIC, encode, encode_batch
from scale0.testing.wires import Parcel, Route, Wire

if TYPE_CHECKING:
    from scale0.testing.world import World

SAYINGS: Final = 25
"""Messages of one visit."""
OPTIONS: Final = (
    *(b"", b"{}", b"[]", b"null", b"{", b'{"id":NaN}', b'{"time":1e999}', b'{"config_version":-1}', b'{"a":1,"a":2}'),
    *(b'{"config_version":18446744073709551616}', b'{"services":["\\ud800"]}', b"[" * 5_000, b'{"timeout":0}'),
    *(b'{"services":"all","slots":0}', b'{"identity":"' + b"x" * 200 + b'"}', b"\xff\xfe", b'{"id":{"id":1}}'),
    *(b'{"service":"","id":1}', b'{"service":"s0","id":1,"timeout":-5}', b'{"service":"scale0.ping","id":7}'),
    *(b'{"time":0}', b'{"config_version":999999}', b'{"command":"status"}', b'{"command":"x","auth_token":"s0_"}'),
)
COMMANDS: Final = (
    *(b"CHECKCONFIG", b"READY", b"HEARTBEAT", b"REQUEST", b"REPLY", b"PARTIAL", b"ERROR", b"NEEDBROKER", b"BATCH"),
    *(b"DISCONNECT", b"MANAGEMENTREQ", b"CONFIG", b"READYOK", b"", b"ready", b"X" * 300, b"\xff"),
)


class HostileNode:
    """One stranger; every visit is a new connection."""

    __slots__ = ("_dice", "_visits", "_world", "name")

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice: random.Random = world.dice("hostile")
        self._visits = 0
        self.name = "hostile"

    def visit(self) -> None:
        """Connect to a door, and talk."""
        broker = self._world.broker
        if not broker.up:
            return
        self._visits += 1
        route = Route(f"hostile-{self._visits}", self._dice)
        wire = self._world.wire(route, self, broker, self._dice.choice((FRONTEND, BACKEND)))
        sayings: Sequence[Callable[[], list[bytes]]] = (
            self._words,
            self._words,
            self._noise,
            self._batch,
            self._forged,
        )
        self._world.check.of_broker.hostile += 1
        for number in range(SAYINGS):
            self._world.agenda.after(number * 0.02, lambda: wire.to_broker(self._dice.choice(sayings)()))
        if self._dice.random() < 0.5:
            self._world.agenda.after(SAYINGS * 0.02, lambda: wire.close(lossy=False))

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """It reads, and does not care."""
        if parcel is not None:
            wire.down.unread -= 1

    def broke(self, wire: Wire) -> None:
        """Nor does it come back."""
        wire.open = False

    def _words(self) -> list[bytes]:
        return [MAGIC, self._dice.choice(COMMANDS), self._dice.choice(OPTIONS)]

    def _noise(self) -> list[bytes]:
        frames = [self._dice.randbytes(self._dice.randrange(30)) for _ in range(self._dice.randrange(1, 6))]
        return self._dice.choice((frames, [MAGIC, *frames], [b"", *frames], [b"MDPC01", *frames], [b"MDPW01", *frames]))

    def _batch(self) -> list[bytes]:
        good: list[Any] = [("HEARTBEAT", {}), ("REQUEST", {"service": 7, "id": []}), ("READY", {"services": []})]
        packed = encode_batch(good, 100, 10_000)[0]
        body = bytearray(packed[3])
        for _ in range(self._dice.randrange(4)):
            body[self._dice.randrange(len(body))] = self._dice.randrange(256)
        return [*packed[:3], bytes(body)]

    def _forged(self) -> list[bytes]:
        """An answer to a request that is really under way, with another backend."""
        ids = list(self._world.broker.broker.requests.under_way) if self._world.broker.up else []
        id_ = self._dice.choice(ids) if ids else f"{self._dice.getrandbits(40):x}.1"
        command = self._dice.choice(("REPLY", "PARTIAL", "ERROR"))
        said = {"id": id_, "code": 422, "message": "forged"} if command == "ERROR" else {"id": id_}
        return encode((command, said, b"forged")[: 2 if command == "ERROR" else 3])
