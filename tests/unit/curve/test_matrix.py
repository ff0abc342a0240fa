"""The whole matrix: every command and every method, at every socket, in every state, for every kind of key.

It is generated from the tables by which the broker itself decides, so that a new row is in it by itself.

Promise: CURVE-14
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import msgspec
import pytest

from scale0.broker.core.broker import Broker
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.memory.store import MemoryStore
from scale0.transport.core.command_table import COMMANDS, RULES, CommandRule
from scale0.transport.core.request_batches import pack_bodies
from scale0.transport.core.sockets import ACTIVE, BACKEND, DISABLED, FRONTEND, JOINING, PEER

SOCKETS = (FRONTEND, BACKEND, PEER)
STATES = (JOINING, ACTIVE, DISABLED)
KINDS = ("clear", "key", "token")
"""No CURVE at all; a key of the socket's role; the key of a token for it. Others get through no gate: `test_doors`."""
NAME = "matrix"
NOW = Now(100.0, 1_900_000_000.0)
UNKNOWN = "NOSUCHCOMMAND"

_numbers = itertools.count()


class Cell:
    """One broker, in one state, and one connection after the other."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._user = ""
        table = KeyTable([Key("k" * 40, role, NAME) for role in SOCKETS])
        keys = None if kind == "clear" else Keys(lambda *_: self._user, table)
        opened = MemoryStore().open()
        config = BrokerConfig(identity="broker-1", error_client_limit=1_000_000)
        self.broker: Broker = compose_broker(config, Endpoints(), opened, 1_000, random.Random(1), None, keys)
        start_broker(self.broker, opened, NOW, Effects())

    def say(self, socket: str, state: str, frames: list[bytes]) -> tuple[list[Any], Effects]:
        """What a newcomer hears at once, and all that was decided."""
        self._user = {"clear": "", "key": f"{socket}/{NAME}", "token": f"token:{socket}/t{next(_numbers)}"}[self.kind]
        self.broker.state.state = state
        effects, routing_id = Effects(), f"{socket}{next(_numbers)}".encode()
        self.broker.receive(socket, routing_id, frames, NOW, effects)
        heard = [
            message
            for box in (effects.sends, effects.promises)
            for peer, messages in box.items()
            for message in messages
            if peer.routing_id == routing_id
        ]
        return heard, effects


@pytest.fixture(scope="module")
def cells() -> dict[str, Cell]:
    return {kind: Cell(kind) for kind in KINDS}


def words_for(schema: type) -> dict[str, Any]:
    """The least that this command needs to be well-formed."""
    return {field.name: value_for(field.type) for field in msgspec.structs.fields(schema) if field.required}


def value_for(kind: Any) -> Any:
    candidates: tuple[Any, ...] = (NAME, 1, [], {})
    for value in candidates:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        return value
    raise AssertionError(f"nothing fits {kind}")


def rule_of(command: str, socket: str) -> CommandRule | None:
    return next((rule for rule in RULES if rule.command == command and socket in rule.sockets), None)


def schema_of(command: str) -> type | None:
    return next((rule.schema for rule in RULES if rule.command == command), None)


CORNERS = pytest.mark.parametrize(("socket", "state", "kind"), tuple(itertools.product(SOCKETS, STATES, KINDS)))
"""A test for each: one for each cell of the matrix would cost more than what it asks."""
SAID = sorted({*COMMANDS, UNKNOWN} - {"BATCH"})


def code_of(message: Any) -> int | None:
    said = message[1]
    return said.get("code") if isinstance(said, dict) else getattr(said, "code", None)


@CORNERS
def test_a_command_is_taken_where_its_row_says_and_nowhere_else(
    cells: dict[str, Cell], socket: str, state: str, kind: str
) -> None:
    for command in SAID:
        check_command(cells[kind], command, socket, state)


def check_command(cell: Cell, command: str, socket: str, state: str) -> None:
    """One cell."""
    rule = rule_of(command, socket)
    schema = rule.schema if rule is not None else schema_of(command)
    words = words_for(schema) if schema is not None else {}
    if (command, socket) == ("CHECKCONFIG", PEER):
        words["role"] = "broker"
    bodies = [b"[]"] if command.startswith("TASKS") else []
    if command in ("REQUESTS", "REPLIES"):
        bodies = [pack_bodies([b"1"])]
    frames = [b"SCALE0/1", command.encode(), json.dumps(words).encode(), *bodies]
    heard, effects = cell.say(socket, state, frames)
    told = [(message[0], code_of(message)) for message in heard]
    if cell.kind == "token":
        check_token(command, socket, state, told, effects)
    elif state == DISABLED and (rule is None or state not in rule.states):
        assert told == []
        assert not effects.writes
    elif rule is None:
        assert told == [("DISCONNECTERROR", 501 if command == UNKNOWN else 403)]
        assert not effects.writes
    elif state not in rule.states:
        assert told == [("ERROR" if command in ("REQUEST", "REQUESTS", "FORWARD") else "DISCONNECTERROR", 503)]
        assert not effects.writes
    elif command == "ENROL":
        assert told == [("DISCONNECTERROR", 403)]
    else:
        assert ("DISCONNECTERROR", 403) not in told, told
        assert ("DISCONNECTERROR", 501) not in told, told
        assert ("DISCONNECTERROR", 400) not in told, told


def check_token(command: str, socket: str, state: str, told: list[Any], effects: Effects) -> None:
    """A token's key may say ENROL."""
    assert not effects.writes
    if state == DISABLED:
        assert told == []
        assert not effects.asks
    elif command == "ENROL":
        # The name is there already, so that nothing is stored here; who decides is asked.
        assert told == []
        assert len(effects.asks) == 1
    else:
        wanted = 403 if rule_of(command, socket) is not None or command != UNKNOWN else 501
        assert [code for _, code in told] == [wanted]
        assert not effects.asks


TABLES = {socket: sorted(table) for socket, table in Cell("clear").broker.tasks.rpc.table.items()}
METHODS = sorted({*itertools.chain(*TABLES.values()), "zerotask.broker.__init__", "os.system"})


@CORNERS
def test_a_method_is_called_where_its_table_says_and_nowhere_else(
    cells: dict[str, Cell], socket: str, state: str, kind: str
) -> None:
    for method in METHODS:
        check_method(cells[kind], method, socket, state)


def check_method(cell: Cell, method: str, socket: str, state: str) -> None:
    """One cell."""
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": []}).encode()
    heard, effects = cell.say(socket, state, [call])
    if cell.kind == "token" or state == DISABLED:
        assert heard == []
        assert not effects.writes
        assert not effects.asks
        return
    if not heard:  # it waits for the store
        assert effects.asks
        assert state == ACTIVE
        return
    (answer,) = (json.loads(message[0]) for message in heard)
    code = answer.get("error", {}).get("code")
    if method not in TABLES.get(socket, ()):
        assert code == -32601
        assert not effects.writes
    elif state == JOINING:
        assert code is not None
        assert code != -32601
        assert not effects.writes
    else:
        assert code != -32601


@pytest.mark.parametrize(("socket", "state"), tuple(itertools.product(SOCKETS, STATES)))
def test_a_token_speaks_no_other_protocol(cells: dict[str, Cell], socket: str, state: str) -> None:
    for frames in ([b"MDPC01", b"mmi.service", b"x"], [b"MDPW02", b"\x01", b"x"], [b"anything"], [b""]):
        heard, effects = cells["token"].say(socket, state, frames)
        assert heard == []
        assert not effects.writes
        assert not effects.asks
