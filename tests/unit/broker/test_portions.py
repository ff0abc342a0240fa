"""A long BATCH is decided in portions: others have their turn between them, and nothing of it is lost or changes place.

Promise: CURVE-18
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.edge.inbox import Inbox
from scale0.kernel.edge.runner import TURN_MESSAGES
from scale0.kernel.limits import Limits
from scale0.transport.core.codec import CHUNK_MESSAGES, batch_splitter

LIMIT = 10_000
IGNORED = b"ignored"
cut = partial(batch_splitter(Limits(max_batch_messages=LIMIT), lambda _door, who: who == IGNORED), "frontend")
pack = msgspec.msgpack.encode


def batch(*messages: object, who: bytes = b"one") -> list[bytes]:
    return [who, b"SCALE0/1", b"BATCH", b"", pack(messages)]


def requests(count: int, who: bytes = b"one") -> list[bytes]:
    return batch(*(["REQUEST", {"service": "s", "id": str(n)}, b"x" * (n % 3)] for n in range(count)), who=who)


@given(st.integers(0, 3 * CHUNK_MESSAGES + 1))
def test_portions_mean_the_same_in_the_same_order(count: int) -> None:
    message = requests(count)
    found = cut(message)
    assert all(portion[:4] == message[:4] for portion in found)
    messages = [msgspec.msgpack.decode(portion[4]) for portion in found]
    assert all(len(some) <= CHUNK_MESSAGES for some in messages)
    assert list(chain(*messages)) == msgspec.msgpack.decode(message[4])
    assert len(found) == max(1, -(-count // CHUNK_MESSAGES))


@pytest.mark.parametrize(
    "message",
    [
        requests(LIMIT + 1),
        [b"one", b"SCALE0/1", b"BATCH", b"", requests(500)[4][:-1]],
        [b"one", b"SCALE0/1", b"BATCH", b"", b"\xdc\x01\xf4" + b"\x91" * 500],
        [b"one", b"SCALE0/1", b"BATCH", b"", b""],
        [b"one", b"SCALE0/1", b"BATCH", requests(500)[4]],
        [b"one", b"SCALE0/1", b"REQUEST", b"{}", requests(500)[4]],
        [b"one", b"MDPC01", b"BATCH", b"", requests(500)[4]],
        [b"one"],
        requests(500, who=IGNORED),
    ],
    ids=[
        "too many",
        "cut off",
        "nested",
        "empty",
        "frames",
        "another command",
        "another protocol",
        "nothing",
        "ignored",
    ],
)
def test_whatever_is_no_good_batch_stays_as_it_is(message: list[bytes]) -> None:
    assert list(cut(message)) == [message]


class Queue:
    """A door where messages wait."""

    name = "frontend"

    def __init__(self, *messages: list[bytes]) -> None:
        self.messages = list(messages)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        for _ in range(min(most, len(self.messages))):
            yield self.messages.pop(0)


@given(st.lists(st.integers(0, 350), max_size=6), st.integers(1, 5))
def test_turns_that_end_early_lose_nothing_and_change_no_order(sizes: list[int], portions_in_a_turn: int) -> None:
    sent = [requests(size, who=b"%d" % number) for number, size in enumerate(sizes)]
    intake = Inbox(Queue(*sent), lambda _door, message: cut(message))
    heard: list[list[bytes]] = []
    while turn := list(islice(intake.take(TURN_MESSAGES), portions_in_a_turn)):
        heard += turn
    assert heard == list(chain(*map(cut, sent)))


def test_nothing_more_is_read_before_a_long_message_has_been_handed_out() -> None:
    queue = Queue(requests(5 * CHUNK_MESSAGES), requests(1, b"two"))
    intake = Inbox(queue, lambda _door, message: cut(message))
    next(intake.take(TURN_MESSAGES))
    assert len(list(islice(intake.take(TURN_MESSAGES), 3))) == 3
    assert len(queue.messages) == 1, "what is not read makes its sender wait"
    assert [message[0] for message in intake.take(TURN_MESSAGES)] == [b"one", b"two"]
