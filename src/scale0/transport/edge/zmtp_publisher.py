"""A PUB or XPUB socket on a ZMTP server: it knows the subscriptions of each connection.

Invariants: a subscriber that does not read misses messages and delays nobody; the subscriptions of one connection are
bounded in number and bytes; they end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scale0.transport.edge.zmtp_server import ZmtpServer

MAX_TOPICS: Final = 10_000
"""Subscriptions of one connection."""
MAX_TOPIC_BYTES: Final = 1_048_576
"""All subscriptions of one connection together."""
SUBSCRIBE: Final = 1


class ZmtpPublisher:
    def __init__(self, server: ZmtpServer, tells: bool) -> None:
        """`tells`: changes of subscriptions can be read, as with XPUB."""
        self.name = server.name
        self.server = server
        self._tells = tells
        self._topics: dict[bytes, dict[bytes, int]] = {}
        """By connection: how often it subscribed to each topic."""
        self._bytes: dict[bytes, int] = {}
        self._subscribers: dict[bytes, dict[bytes, None]] = {}
        """By topic: its connections."""
        self._lengths: dict[int, int] = {}
        """How many topics of each length there are: a message belongs to the topics that it begins with."""
        self._changes: list[bytes] = []
        server.closed = self._forget

    @property
    def descriptor(self) -> int:
        return self.server.descriptor

    @property
    def port(self) -> int:
        return self.server.port

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        """The first subscription to a topic and the end of the last one: 1 or 0 and the topic."""
        for routing_id, *frames in self.server.drain(most):
            if routing_id in self.server and len(frames) == 1 and frames[0][:1] in (b"\x00", b"\x01"):
                self._change(routing_id, frames[0][0] == SUBSCRIBE, frames[0][1:])
        changes, self._changes = self._changes, []
        if self._tells:
            for change in changes:
                yield [change]

    def publish(self, frames: list[bytes]) -> None:
        """Send to all subscribers; those that do not read miss it."""
        topic = frames[0]
        found: dict[bytes, None] = {}
        for length in self._lengths:
            found.update(self._subscribers.get(topic[:length], {}) if length <= len(topic) else {})
        for routing_id in found:
            self.server.send(routing_id, frames)

    def flush(self) -> None:
        self.server.flush()

    def sweep(self) -> None:
        self.server.sweep()

    def close(self) -> None:
        self.server.close()

    def _change(self, routing_id: bytes, subscribes: bool, topic: bytes) -> None:
        topics = self._topics.setdefault(routing_id, {})
        count = topics.get(topic, 0)
        if subscribes:
            if not count:
                self._bytes[routing_id] = self._bytes.get(routing_id, 0) + len(topic)
                if len(topics) >= MAX_TOPICS or self._bytes[routing_id] > MAX_TOPIC_BYTES:
                    self.server.disconnect(routing_id)
                    return
                self._add(topic, routing_id)
            topics[topic] = count + 1
        elif count > 1:
            topics[topic] = count - 1
        elif count:
            del topics[topic]
            self._bytes[routing_id] -= len(topic)
            self._remove(topic, routing_id)

    def _add(self, topic: bytes, routing_id: bytes) -> None:
        subscribers = self._subscribers.setdefault(topic, {})
        if not subscribers:
            self._lengths[len(topic)] = self._lengths.get(len(topic), 0) + 1
            self._changes.append(b"\x01" + topic)
        subscribers[routing_id] = None

    def _remove(self, topic: bytes, routing_id: bytes) -> None:
        subscribers = self._subscribers[topic]
        del subscribers[routing_id]
        if not subscribers:
            del self._subscribers[topic]
            self._lengths[len(topic)] -= 1
            if not self._lengths[len(topic)]:
                del self._lengths[len(topic)]
            self._changes.append(b"\x00" + topic)

    def _forget(self, routing_id: bytes) -> None:
        self._bytes.pop(routing_id, None)
        for topic in self._topics.pop(routing_id, {}):
            self._remove(topic, routing_id)
