"""A Helen of version 2: version 1, and accepted, schedule, ack, ping, redirect."""

from __future__ import annotations

import json
from typing import Any

from tests.wire.monitoring.helen_1 import ACCEPT_SECONDS, Helen1, Line
from tests.wire.monitoring.raw_agent import Message


class Helen2(Helen1):
    """Says `accepted` as soon as an agent that speaks version 2 has said hello."""

    heartbeat_seconds = 30

    def welcome(self, seconds: float = ACCEPT_SECONDS) -> Line:
        line = self.accept(seconds)
        words = line.line().split(b" ")
        assert words[:2] == [b"hello", b"2"], words
        line.send(b"accepted %d\n" % self.heartbeat_seconds)
        return line


def schedule(line: Line, *checks: dict[str, Any], version: int = 1, number: int = 1) -> None:
    """These are the checks to run by itself."""
    entries = [{"check": check["name"], "args": {}, "timeout": 5, **check} for check in checks]
    blob = json.dumps({"version": version, "checks": entries}).encode()
    line.send(b"schedule %d %d\n%s\n" % (number, len(blob), blob))


def reports(line: Line, name: str, count: int, seconds: float = 10.0, ack: bool = True) -> list[Message]:
    """The next reports of this name; all that come are acknowledged on the way, if so wished."""
    found: list[Message] = []
    while len(found) < count:
        heard = line.message(seconds)
        if heard.command == "ping":
            line.send(b"pong %d\n" % heard.number)
            continue
        assert heard.command == "report", heard
        if ack:
            line.send(b"ack %d\n" % heard.number)
        if heard.words[2].decode() == name:
            found.append(heard)
    return found
