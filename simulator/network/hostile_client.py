"""A hostile client: sends malformed, forged and untimely messages. The invariants check that no other client is
affected."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.transport.core.codec import MAGIC, encode, encode_batch
from scale0.transport.core.sockets import BACKEND, FRONTEND
from simulator.network.connections import Parcel, Route, Wire

if TYPE_CHECKING:
    from simulator.network.world import World

MESSAGES: Final = 25
"""Messages of one connection."""
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
    *(b"TASKSDONE", b"TASKSTATUS", b"TASKS", b"TASKSOK", b"TASKSCANCEL"),
)
BODIES: Final = (
    *(b"", b"[]", b"{}", b"[[]]", b'[{"id":1}]', b'[{"id":"x","attempt":-1,"result":1}]', b"[" * 3_000, b"\xff"),
    *(b'[{"id":"x","attempt":99999999999999999999,"status":"running"}]', b'[{"id":"","attempt":1,"error":{}}]'),
    *(b'[{"id":"x","attempt":1}]', b'[{"id":"\\ud800","attempt":1,"result":null}]', b"null", b'[["x",1]]'),
)
PARAMS: Final = (
    *("[]", "{}", "null", "7", '["me"]', '["me","s0"]', '["me","s0",{},"s0:1",{}]', '["me","",{}]', '{"client_id":7}'),
    *('["me","s0",{},"x",{"priority":10}]', '["me","s0",{},"x",{"delay":-1}]', '["me","s0",{},"x",{"no":1}]'),
    *('["me","s0",{},"x",{"after":["nobody"]}]', '["me",["x"],-1]', '["me",[],1e400]', '["me","x",null,0]'),
    *('["me",7]', '["me","x","finished"]', '["me",{"a":1}]', "[" * 2_000, '["\\ud800"]', '["me","s0",NaN]'),
)
METHODS: Final = (
    *("client_connect", "client_disconnect", "client_new_task", "client_task_status", "client_task_result"),
    *("client_task_wait", "client_task_cancel", "node_connect", "node_heartbeat", "node_status", "node_disconnect"),
    *("node_task_request", "node_tasks_request", "task_status", "node_task_finished", "node_task_failed", "__init__"),
)


class HostileNode:
    """A hostile client; it uses a new connection for each visit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: random.Random = world.rng_of("hostile")
        self._visits = 0
        self.name = "hostile"

    def visit(self) -> None:
        broker = self._world.broker
        if not broker.up:
            return
        self._visits += 1
        route = Route(f"hostile-{self._visits}", self._rng)
        wire = self._world.wire(route, self, broker, self._rng.choice((FRONTEND, BACKEND)))
        makers: Sequence[Callable[[], list[bytes]]] = (
            self._random_message,
            self._random_message,
            self._noise,
            self._batch,
            self._forged,
            self._random_task_message,
            self._call,
            self._call,
            self._foreign_task,
        )
        self._world.check.of_broker.hostile += 1
        for number in range(MESSAGES):
            self._world.agenda.after(number * 0.02, lambda: wire.to_broker(self._rng.choice(makers)()))
        if self._rng.random() < 0.5:
            self._world.agenda.after(MESSAGES * 0.02, lambda: wire.close(lossy=False))

    def arrive(self, wire: Wire, parcel: Parcel) -> None:
        """Reads and discards messages."""
        if parcel is not None:
            wire.down.unread -= 1

    def broke(self, wire: Wire) -> None:
        wire.open = False

    def _random_message(self) -> list[bytes]:
        return [MAGIC, self._rng.choice(COMMANDS), self._rng.choice(OPTIONS)]

    def _noise(self) -> list[bytes]:
        frames = [self._rng.randbytes(self._rng.randrange(30)) for _ in range(self._rng.randrange(1, 6))]
        return self._rng.choice((frames, [MAGIC, *frames], [b"", *frames], [b"MDPC01", *frames], [b"MDPW01", *frames]))

    def _batch(self) -> list[bytes]:
        good: list[Any] = [("HEARTBEAT", {}), ("REQUEST", {"service": 7, "id": []}), ("READY", {"services": []})]
        packed = encode_batch(good, 100, 10_000)[0]
        body = bytearray(packed[3])
        for _ in range(self._rng.randrange(4)):
            body[self._rng.randrange(len(body))] = self._rng.randrange(256)
        return [*packed[:3], bytes(body)]

    def _forged(self) -> list[bytes]:
        """A reply to a request that another backend has in flight."""
        ids = list(self._world.broker.broker.requests.under_way) if self._world.broker.up else []
        id_ = self._rng.choice(ids) if ids else f"{self._rng.getrandbits(40):x}.1"
        command = self._rng.choice(("REPLY", "PARTIAL", "ERROR"))
        message = {"id": id_, "code": 422, "message": "forged"} if command == "ERROR" else {"id": id_}
        return encode((command, message, b"forged")[: 2 if command == "ERROR" else 3])

    def _random_task_message(self) -> list[bytes]:
        return [MAGIC, self._rng.choice((b"TASKSDONE", b"TASKSTATUS")), b"", self._rng.choice(BODIES)]

    def _call(self) -> list[bytes]:
        """JSON-RPC, often invalid; it never takes work, and its submissions are refused."""
        method, params = self._rng.choice(METHODS), self._rng.choice(PARAMS)
        id_ = self._rng.choice((',"id":1', ',"id":"x"', "", ',"id":{}', ',"id":null'))
        message = f'{{"jsonrpc":"2.0","method":"zerotask.broker.{method}","params":{params}{id_}}}'.encode()
        match self._rng.randrange(6):
            case 0:
                return [b"[%b,%b]" % (message, b"7")]
            case 1:
                return [message[: self._rng.randrange(1, len(message))]]
            case 2:
                return [b"", message]
            case 3:
                return [message, b"more"]
            case _:
                return [message]

    def _foreign_task(self) -> list[bytes]:
        """A message about another client's task."""
        tasks = list(self._world.broker.broker.tasks.backlog.tasks.values()) if self._world.broker.up else []
        task = self._rng.choice(tasks) if tasks else None
        id_, attempt = (task.id, task.attempt) if task is not None else ("nothing", 1)
        name = f"hostile-{self._visits}"
        entry = {"id": id_, "attempt": attempt, "result": "forged", "status": "running"}
        calls: Sequence[tuple[str, list[Any]]] = (
            ("client_connect", [name]),
            ("node_connect", [name, []]),
            ("client_task_status", [name, id_]),
            ("client_task_result", [name, id_]),
            ("client_task_wait", [name, [id_], 0]),
            ("client_task_cancel", [name, id_]),
            ("node_task_finished", [name, id_, "forged", attempt]),
            ("node_task_finished", [id_, "forged"]),
            ("node_task_failed", [name, id_, {"code": 1, "message": "forged"}, attempt]),
            ("task_status", [name, id_, "forged"]),
        )
        if self._rng.random() < 0.3:
            command = self._rng.choice((b"TASKSDONE", b"TASKSTATUS"))
            return [MAGIC, command, b"", msgspec.json.encode([entry])]
        method, params = self._rng.choice(calls)
        message = {"jsonrpc": "2.0", "method": f"zerotask.broker.{method}", "params": params, "id": 1}
        return [msgspec.json.encode(message)]
