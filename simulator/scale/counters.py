"""Counters of the messages between brokers, and from their clients, in a large simulated network. Invariant: a message
counts once when it is sent, with all bytes of its frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

BATCH: Final = b"BATCH"
COUNTED: Final = frozenset({"CHECKCONFIG", "NEEDBROKER", "READY"})
"""Client commands that are counted, because they occur in bursts."""

_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


def spoken(frames: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """Yields the commands in a message with their sizes; those of a BATCH share its frames."""
    if len(frames) == 4 and frames[1] == BATCH:
        for raw in _raws.decode(frames[3]):
            parts = _raws.decode(raw)
            yield msgspec.msgpack.decode(parts[0], type=str), len(memoryview(raw))
    elif len(frames) > 1:
        yield frames[1].decode("ascii", "replace"), sum(map(len, frames))


class Count:
    __slots__ = ("bytes", "messages")

    def __init__(self, messages: int = 0, size: int = 0) -> None:
        self.messages = messages
        self.bytes = size

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


class Meter:
    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Count]] = {}
        """By broker and command: sent to other brokers."""
        self.received: dict[str, dict[str, Count]] = {}
        """By broker and command: received from other brokers."""
        self.published: dict[str, Count] = {}
        """By broker: published on `config_pub_port`, each message once for all subscribers."""
        self.asked: dict[str, dict[tuple[str, int], int]] = {}
        """By broker: how often clients sent each command of COUNTED in each second."""
        self.cpu: dict[str, float] = {}
        """By broker: seconds of processor time in its turns."""

    def reset(self) -> None:
        for table in (self.sent, self.received, self.published, self.asked, self.cpu):
            table.clear()

    def carried(self, sender: str, receiver: str, frames: Sequence[bytes]) -> None:
        for command, size in spoken(frames):
            self.sent.setdefault(sender, {}).setdefault(command, Count()).add(size)
            self.received.setdefault(receiver, {}).setdefault(command, Count()).add(size)

    def publish(self, broker: str, frames: Sequence[bytes]) -> None:
        self.published.setdefault(broker, Count()).add(sum(map(len, frames)))

    def client_sent(self, broker: str, frames: Sequence[bytes], second: int) -> None:
        for command, _ in spoken(frames):
            if command in COUNTED:
                table = self.asked.setdefault(broker, {})
                table[command, second] = table.get((command, second), 0) + 1

    def peers(self, brokers: Sequence[str], seconds: float) -> dict[str, Any]:
        """Returns the messages that a broker exchanges with others per second: on average, and of the busiest one."""
        out: dict[str, Any] = {}
        commands = sorted({command for table in self.sent.values() for command in table})
        for command in commands:
            counts = [self.sent.get(name, {}).get(command, Count()) for name in brokers]
            out[command] = {
                "messages": round(sum(one.messages for one in counts) / len(brokers) / seconds, 3),
                "bytes": round(sum(one.bytes for one in counts) / len(brokers) / seconds, 1),
            }
        sent = [total(self.sent.get(name, {})) for name in brokers]
        received = [total(self.received.get(name, {})) for name in brokers]
        out["all"] = {
            "messages": round(sum(one.messages for one in sent) / len(brokers) / seconds, 2),
            "bytes": round(sum(one.bytes for one in sent) / len(brokers) / seconds, 1),
            "most_told_messages": round(max(one.messages for one in sent) / seconds, 2),
            "most_told_bytes": round(max(one.bytes for one in sent) / seconds, 1),
            "most_heard_messages": round(max(one.messages for one in received) / seconds, 2),
            "most_heard_bytes": round(max(one.bytes for one in received) / seconds, 1),
        }
        return out

    def load(self, brokers: Sequence[str], seconds: float) -> dict[str, float]:
        """Returns the processor time of a broker per second, in milliseconds."""
        times = [1_000 * self.cpu.get(name, 0.0) / seconds for name in brokers]
        return {"mean_ms": round(sum(times) / len(times), 2), "most_ms": round(max(times), 2)}

    def peak(self, command: str) -> dict[str, Any]:
        """Returns the most that one broker received in one second, and the total."""
        found = [
            (count, name, second)
            for name, table in self.asked.items()
            for (word, second), count in table.items()
            if word == command
        ]
        if not found:
            return {"most_per_broker_and_second": 0, "in_all": 0}
        count, name, second = max(found)
        return {
            "most_per_broker_and_second": count,
            "at": name,
            "second": second,
            "in_all": sum(one for one, _, _ in found),
        }


def total(counts: dict[str, Count]) -> Count:
    return Count(sum(one.messages for one in counts.values()), sum(one.bytes for one in counts.values()))
