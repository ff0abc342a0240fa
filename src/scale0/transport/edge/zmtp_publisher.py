"""A PUB or XPUB socket on a ZMTP server: it knows the subscriptions of each connection, and its key.

Invariants: a subscriber that does not read misses messages and delays nobody; the subscriptions of one connection are
bounded in number and bytes; they end with it. A sender that changes its subscriptions faster than its rate is read
later, and loses none. Whether a message is for a key is decided once for each key with a
matching subscription, and once in a turn for consecutive messages with the same readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scale0.kernel.effects import Readers
from scale0.kernel.rate_window import RateWindow
from scale0.kernel.topics import prefixes
from scale0.transport.edge.zmtp_connection import Sender
from scale0.transport.edge.zmtp_server import ZmtpServer

MAX_TOPICS: Final = 10_000
"""Subscriptions of one connection."""
MAX_TOPIC_BYTES: Final = 1_048_576
"""All subscriptions of one connection together."""
TOPIC_BYTES: Final = 700
"""What a subscription needs beside its topic: measured, with an index of its own."""
SUBSCRIBE: Final = 1
WINDOW_SECONDS: Final = 1.0
"""The window of `max_requests_per_second`."""


class ZmtpPublisher:
    def __init__(self, server: ZmtpServer, tells: bool, max_per_second: int) -> None:
        """`tells`: changes of subscriptions can be read, as with XPUB; `max_per_second`: those of one sender."""
        self.name = server.name
        self.server = server
        self._tells = tells
        self._topics: dict[bytes, dict[bytes, int]] = {}
        """By connection: how often it subscribed to each topic."""
        self._bytes: dict[bytes, int] = {}
        self._keys: dict[bytes, str] = {}
        """By connection: its public key; blank without keys."""
        self._subscribers: dict[bytes, dict[str, dict[bytes, None]]] = {}
        """By topic and public key: its connections."""
        self._readers: Readers | None = None
        self._decisions: dict[str, bool] = {}
        """By public key: whether it is one of `_readers`."""
        self._lengths: dict[int, int] = {}
        """How many topics of each length there are: a message belongs to the topics that it begins with."""
        self._changes: list[bytes] = []
        self._max_per_second = max_per_second
        self._rates: dict[Sender, RateWindow] = {}
        self._held: dict[Sender, float] = {}
        """Senders that are not read, and until when."""
        server.closed = self._forget

    @property
    def descriptor(self) -> int:
        return self.server.descriptor

    @property
    def port(self) -> int:
        return self.server.port

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        """The first subscription to a topic and the end of the last one: 1 or 0 and the topic."""
        self._release()
        for routing_id, *frames in self.server.drain(most):
            self._charge(routing_id)
            if routing_id in self.server and len(frames) == 1 and frames[0][:1] in (b"\x00", b"\x01"):
                self._change(routing_id, frames[0][0] == SUBSCRIBE, frames[0][1:])
        changes, self._changes = self._changes, []
        if self._tells:
            for change in changes:
                yield [change]

    def pending(self) -> float | None:
        if self.server.pending():
            return 0.0
        return max(0.0, min(self._held.values()) - self.server.clock()) if self._held else None

    def _charge(self, routing_id: bytes) -> None:
        """Count a change for its sender; one that has used up its rate is held until its window ends."""
        sender, mono = self.server.sender_of(routing_id), self.server.clock()
        if sender is None:
            return
        window = self._rates.setdefault(sender, RateWindow())
        if window.add(1, WINDOW_SECONDS, mono) >= self._max_per_second and self.server.hold(routing_id) is not None:
            self._held[sender] = window.since + WINDOW_SECONDS

    def _release(self) -> None:
        mono = self.server.clock()
        for sender in [sender for sender, until in self._held.items() if until <= mono]:
            del self._held[sender]
            self.server.release(sender)

    def publish(self, frames: list[bytes], readers: Readers | None = None) -> None:
        """Send to all subscribers whose key is one of the readers; those that do not read miss it."""
        topic = frames[0]
        found: dict[bytes, None] = {}
        for prefix in prefixes(topic, self._lengths):
            of_topic = self._subscribers.get(prefix)
            for key, connections in of_topic.items() if of_topic is not None else ():
                if readers is None or self._may_read(readers, key):
                    found.update(connections)
        for routing_id in found:
            self.server.send(routing_id, frames)

    def _may_read(self, readers: Readers, key: str) -> bool:
        if readers is not self._readers:
            self._readers, self._decisions = readers, {}
        if key not in self._decisions:
            self._decisions[key] = readers(key)
        return self._decisions[key]

    def flush(self) -> None:
        self._readers = None
        self.server.flush()

    def sweep(self) -> None:
        self.server.sweep()
        mono = self.server.clock()
        self._rates = {who: one for who, one in self._rates.items() if mono - one.since < WINDOW_SECONDS}

    def close(self) -> None:
        self.server.close()

    def _change(self, routing_id: bytes, subscribes: bool, topic: bytes) -> None:
        topics = self._topics.setdefault(routing_id, {})
        self._keys[routing_id] = self.server.key_of(routing_id)
        count = topics.get(topic, 0)
        if subscribes:
            if not count:
                self._bytes[routing_id] = self._bytes.get(routing_id, 0) + len(topic)
                if len(topics) >= MAX_TOPICS or self._bytes[routing_id] > MAX_TOPIC_BYTES:
                    self.server.disconnect(routing_id)
                    return
                self._add(topic, routing_id)
            topics[topic] = count + 1
            self._count(routing_id)
        elif count > 1:
            topics[topic] = count - 1
        elif count:
            del topics[topic]
            self._bytes[routing_id] -= len(topic)
            self._remove(topic, routing_id)
            self._count(routing_id)

    def _count(self, routing_id: bytes) -> None:
        """The topics of a connection are memory that its key occupies; too much of it ends the connection."""
        self.server.note_backlog(routing_id, self._bytes[routing_id] + TOPIC_BYTES * len(self._topics[routing_id]))

    def _add(self, topic: bytes, routing_id: bytes) -> None:
        of_topic = self._subscribers.setdefault(topic, {})
        if not of_topic:
            self._lengths[len(topic)] = self._lengths.get(len(topic), 0) + 1
            self._changes.append(b"\x01" + topic)
        of_topic.setdefault(self._keys[routing_id], {})[routing_id] = None

    def _remove(self, topic: bytes, routing_id: bytes) -> None:
        of_topic, key = self._subscribers[topic], self._keys[routing_id]
        del of_topic[key][routing_id]
        if not of_topic[key]:
            del of_topic[key]
        if not of_topic:
            del self._subscribers[topic]
            self._lengths[len(topic)] -= 1
            if not self._lengths[len(topic)]:
                del self._lengths[len(topic)]
            self._changes.append(b"\x00" + topic)

    def _forget(self, routing_id: bytes) -> None:
        self._bytes.pop(routing_id, None)
        for topic in self._topics.pop(routing_id, {}):
            self._remove(topic, routing_id)
        self._keys.pop(routing_id, None)
