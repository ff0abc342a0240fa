"""Messages of a broker, as tests read them: SCALE0/1 alone or in a batch, and documents of JSON-RPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

MAGIC = b"SCALE0/1"
RPC = "rpc"
"""The command of a message that is a document of JSON-RPC; its body is the document."""


class Message(NamedTuple):
    command: str
    options: dict[str, Any]
    bodies: list[Any]

    @property
    def code(self) -> Any:
        return self.options.get("code")

    @property
    def body(self) -> Any:
        """The first body, as JSON."""
        first = self.bodies[0]
        return json.loads(first) if isinstance(first, bytes) else first


def decode(frames: list[bytes]) -> Iterator[Message]:
    """The messages in these frames, which have no delimiter."""
    if frames[0] != MAGIC:
        document = json.loads(frames[0])
        for each in document if isinstance(document, list) else [document]:
            yield Message(RPC, {}, [each])
    elif frames[1] != b"BATCH":
        yield Message(frames[1].decode(), json.loads(frames[2] or b"{}"), frames[3:])
    else:
        assert len(frames) == 4
        assert frames[2] == b""
        for command, options, *bodies in msgspec.msgpack.decode(frames[3]):
            yield Message(command, options, bodies)
