"""Publishes notifications on `task_pub_port` to subscribers. Publications are hints; only queries are authoritative.
Invariants: nothing is published without a subscriber; a task is announced after it is stored, and again while it stays
unassigned; with CURVE a key receives nothing about tasks of others, except announcements of tasks that it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Readers
from scale0.kernel.names import is_reserved
from scale0.kernel.topics import prefixes
from scale0.storage.task_rows import EndedTask
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import notification, quoted

TASK_PUB: Final = "task_pub"
NODE_TOPIC: Final = b"node"
TASK_PREFIX: Final = b"task."
RESULT_PREFIX: Final = b"result."
NODE_STATUS_SECONDS: Final = 10.0
"""Interval of node status requests."""
REPEATED_TASKS: Final = 100
"""Tasks of one method that are announced again, oldest first."""
MAX_TOPICS: Final = 100_000
"""Distinct subscriptions that are tracked; with more, everything is published."""


class TaskPublisher:
    def __init__(
        self,
        state: BrokerState,
        on_method: Callable[[str, Now, Effects], None],
        on_prefix: Callable[[Now, Effects], None],
        unassigned: Callable[[int], Iterable[QueuedTask]],
        announce_stored: Callable[[Effects], None],
    ) -> None:
        """`on_method` is called with a subscribed method, `on_prefix` after a subscription to several; `unassigned`
        returns the first unassigned tasks of each method; `announce_stored` announces tasks that are not in memory."""
        self._state = state
        self._on_method = on_method
        self._on_prefix = on_prefix
        self._unassigned = unassigned
        self._announce_stored = announce_stored
        self.topics: set[bytes] = set()
        self.unscanned: set[bytes] = set()
        """Those of them that may match several methods, and wait for a scan of the queue."""
        self._lengths: dict[int, int] = {}
        self._everything = False
        self._readers: tuple[str, str, Readers | None] = ("", "", None)
        """Those of the last publication: one for all tasks of an owner and a method that are announced together."""

    def start(self, now: Now) -> None:
        timers = self._state.timers
        timers.add((self._ask_nodes, None), now.mono + NODE_STATUS_SECONDS)
        timers.add((self._repeat, None), now.mono + self._state.interval)

    def subscribe(self, frame: bytes, now: Now, effects: Effects) -> None:
        """Handles an XPUB frame: the byte 1 or 0, and a topic."""
        topic = frame[1:]
        if frame[:1] == b"\x01":
            if len(self.topics) >= MAX_TOPICS:
                self._everything = True
                return
            if topic not in self.topics:
                self.topics.add(topic)
                self._lengths[len(topic)] = self._lengths.get(len(topic), 0) + 1
            self._load_method(topic, now, effects)
        elif frame[:1] == b"\x00" and topic in self.topics:
            self.topics.discard(topic)
            self.unscanned.discard(topic)
            self._lengths[len(topic)] -= 1
            if not self._lengths[len(topic)]:
                del self._lengths[len(topic)]

    def _load_method(self, topic: bytes, now: Now, effects: Effects) -> None:
        """Loads the queue of a subscribed method, so that the next repetition announces its tasks."""
        if topic.startswith(TASK_PREFIX):
            method = topic[len(TASK_PREFIX) :].decode("utf-8", "replace")
            if method:
                self._on_method(method, now, effects)
        if TASK_PREFIX.startswith(topic) or topic.startswith(TASK_PREFIX):
            self.unscanned.add(topic)
            self._on_prefix(now, effects)

    def is_wanted(self, topic: bytes) -> bool:
        """True if a subscription is a prefix of the topic."""
        if self._everything:
            return True
        return any(prefix in self.topics for prefix in prefixes(topic, self._lengths))

    def taken(self, tasks: Iterable[QueuedTask], effects: Effects) -> None:
        for task in tasks:
            self._announce(task.method, task.id, task.owner, effects)

    def ended(self, task: QueuedTask | EndedTask, status: str, effects: Effects) -> None:
        topic = RESULT_PREFIX + task.client.encode()
        if self.is_wanted(topic):
            params = b'{"task_id":"%b","status":"%b"}' % (task.id.encode(), status.encode())
            frames = [topic, notification(b"zerotask.client.task_complete", params)]
            effects.publish(TASK_PUB, frames, self._readers_of(task.owner))

    def ask_nodes(self, effects: Effects) -> None:
        if self.is_wanted(NODE_TOPIC):
            params = b'{"heartbeat_interval":%a}' % self._state.interval
            effects.publish(TASK_PUB, [NODE_TOPIC, notification(b"zerotask.node.broker_node_status", params)])

    def repeat(self, method: str, tasks: Iterable[tuple[str, str]], effects: Effects) -> None:
        """Announces tasks by id and owner."""
        for id_, owner in tasks:
            self._announce(method, id_, owner, effects)

    def _announce(self, method: str, id_: str, owner: str, effects: Effects) -> None:
        topic = TASK_PREFIX + method.encode("utf-8", "surrogatepass")
        if self.is_wanted(topic) and not is_reserved(method):
            params = b'{"method":%b,"task_id":"%b"}' % (quoted(method), id_.encode())
            frames = [topic, notification(b"zerotask.node.broker_new_task", params)]
            effects.publish(TASK_PUB, frames, self._readers_of(owner, method))

    def _readers_of(self, owner: str, method: str = "") -> Readers | None:
        """Who may receive a publication about a task: its owner, and those that may take tasks of the method, if it is
        given. None: everybody, without CURVE and where the owner is not known."""
        keys = self._state.keys
        if keys is None or not owner:
            return None
        if self._readers[:2] != (owner, method):

            def may_read(public_key: str) -> bool:
                return public_key == owner or (bool(method) and keys.may_take(method, public_key))

            self._readers = (owner, method, may_read)
        return self._readers[2]

    def _ask_nodes(self, _: None, now: Now, effects: Effects) -> None:
        if self._state.serving:
            self.ask_nodes(effects)
        self._state.timers.add((self._ask_nodes, None), now.mono + NODE_STATUS_SECONDS)

    def _repeat(self, _: None, now: Now, effects: Effects) -> None:
        if (self.topics or self._everything) and self._state.serving and not self._state.draining:
            for task in self._unassigned(REPEATED_TASKS):
                self._announce(task.method, task.id, task.owner, effects)
            self._announce_stored(effects)
        self._state.timers.add((self._repeat, None), now.mono + self._state.interval)
