"""Each mistake that Helen answers with `error` and close, without an effect on other agents (PROTOCOL 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.fakes.fake_agent import FakeAgent
from tests.fakes.helen_process import HelenProcess
from tests.wire.monitoring.network import MIB, Network, answer, unique

pytestmark = pytest.mark.processes

KIB8: Final = 8_192
NEW: Final = "before hello"
ACCEPTED_1: Final = "after hello 1"
ACCEPTED_2: Final = "after hello 2"
CHECKED: Final = "after a check"
"""`%i` is then the id of the check that Helen has sent."""

BAD_NUMBERS: Final = [
    *(b"01", b"+1", b"-1", b"1_0", b"1.0", b"1e0", b"0x1", "١".encode(), "²".encode()),
    *(b"2147483648", b"9" * 5_000, b"", b"one"),
]
WITH_NUMBERS: Final = {
    NEW: [b"hello %s raw/1\n"],
    ACCEPTED_1: [b"result %s c 2\n{}\n"],
    ACCEPTED_2: [
        *(b"ping %s\n", b"pong %s\n", b"fetch %s stage0\n"),
        *(b"report %s disk 2\n{}\n", b"report 1 disk %s\n{}\n"),
    ],
    CHECKED: [b"result %i c %s\n{}\n"],
}
BAD_TEXTS: Final = [b"\xff", b"a\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
WITH_TEXTS: Final = {
    NEW: [b"hello 1 %s\n"],
    ACCEPTED_2: [b"report 1 %s 2\n{}\n"],
    CHECKED: [b"result %i %s 2\n{}\n"],
}
NO_HELLO: Final = [
    *(b"hello\n", b"hello 1\n", b"hello 1 \n", b"hello 1 raw/1 more\n", b"hello  1 raw/1\n", b" hello 1 raw/1\n"),
    *(b"hello 1 raw/1 \n", b"hello\t1\traw/1\n", b"HELLO 1 raw/1\n"),
    *(b"result 1 c 2\n{}\n", b"ping 1\n", b"pong 1\n", b"report 1 disk 2\n{}\n", b"fetch 1 stage0\n", b"frobnicate\n"),
    *(b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) + b"\n"),
]
AFTER_HELLO: Final = [
    *(b"hello 1 raw/1\n", b"hello 2 raw/1\n", b"frobnicate 1 2 3\n", b"\n", b"RESULT 1 c 2\n{}\n"),
    *(b"check c 1 2\n{}\n", b"reload\n", b"error I am not allowed to say this\n", b"accepted 30\n"),
    *(b"redirect 127.0.0.1:1\n", b"schedule 1 2\n{}\n", b"ack 1\n", b"file 1 stage0 0\n\n"),
    *(b"result 7 c 2\n{}\n", b"result 0 c 2\n{}\n", b"result 2147483647 c 2\n{}\n", b"result 1 2\n{}\n", b"result\n"),
]
VERSION_2: Final = [b"ping 1\n", b'report 1 d 14\n{"state":"ok"}\n', b"fetch 1 stage0\n"]
BLOBS: Final = [
    *(b"result %i c 2\n{}" + end + b"ping 1\n" for end in (b"X", b"", b" \n", b"\r\r\n")),
    b"result %i c 1\n{}\n",
    *(b"%s %%i c %d\n" % (word, length) for word in (b"result", b"report") for length in (MIB + 1, 2**31 - 1)),
]


def faults() -> Iterator[tuple[str, bytes]]:
    """When, and what is sent."""
    for bad, table in ((BAD_NUMBERS, WITH_NUMBERS), (BAD_TEXTS, WITH_TEXTS)):
        for stage, lines in table.items():
            yield from ((stage, line.replace(b"%s", one)) for line in lines for one in bad)
    yield from ((NEW, line) for line in NO_HELLO)
    yield from ((stage, line) for stage in (ACCEPTED_1, ACCEPTED_2) for line in AFTER_HELLO)
    yield from ((ACCEPTED_1, line) for line in VERSION_2)
    yield from ((CHECKED, line) for line in BLOBS)
    for stage, head in ((NEW, b"hello 1 "), (ACCEPTED_2, b"fetch 1 ")):
        yield from ((stage, head.ljust(KIB8 + 1, b"n") + end) for end in (b"\n", b"\r\n", b"n"))
    yield NEW, b"x" * (4 * MIB)


@pytest.fixture
def bystander(network: Network) -> Iterator[FakeAgent]:
    """An honest agent beside the one under test: it is connected before, and answers after."""
    agent = network.join(unique("honest"))
    yield agent
    network.check_answers(agent)


# Promise: AGENT-1, AGENT-2, AGENT-3
@pytest.mark.parametrize(("stage", "data"), list(faults()), ids=lambda value: repr(value[:40]))
def test_a_fault_is_one_error_and_the_end(network: Network, bystander: FakeAgent, stage: str, data: bytes) -> None:
    name = unique("bad")
    if stage == NEW:
        agent = network.helen.agent(name)
    else:
        agent = network.join(name, 2 if stage in (ACCEPTED_2, CHECKED) else 1)
    if stage == CHECKED:
        network.check(agent, timeout=1)
        data = data.replace(b"%i", b"%d" % agent.expect("check").number)
    agent.send(data)
    agent.expect_error()


# Promise: AGENT-2
def test_a_result_that_was_given_already(network: Network, bystander: FakeAgent, agent: FakeAgent) -> None:
    asked = network.check(agent)
    check = agent.expect("check")
    agent.answer(check, {"state": "ok", "message": "first"})
    agent.answer(check, {"state": "critical", "message": "second"})
    agent.expect_error()
    assert answer(asked)["message"] == "first"


# Promise: AGENT-1
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["newline", "crlf"])
@pytest.mark.parametrize("length", [KIB8 - 1, KIB8])
def test_a_line_of_8_kib_is_accepted(helen: HelenProcess, length: int, end: bytes) -> None:
    """Counted without its end."""
    agent = helen.agent(unique("long"))
    agent.send(b"hello 2 ".ljust(length, b"v") + end)
    agent.expect_accepted()
    agent.send(b"ping 1\n")
    agent.expect("pong")


def test_the_longest_name_that_can_be_fetched_is_not_helens_fault(agent_2: FakeAgent) -> None:
    """The line is as long as a line may be; the answer would be longer. That is nothing to fall over."""
    line = b"fetch 1 ".ljust(KIB8, b"n")
    agent_2.send(line + b"\n")
    received = agent_2.message()
    if received.command == "file":
        assert received.words[2] == line[8:]
    else:
        assert received.command == "error"
        assert b"failed" not in b" ".join(received.words), received


# Promise: AGENT-2
def test_what_follows_an_error_is_not_obeyed(helen: HelenProcess, agent_2: FakeAgent) -> None:
    agent_2.send(b'frobnicate\nreport 1 disk 32\n{"state":"ok","spool":"e","n": 1}\nping 9\n')
    agent_2.expect_error()
    assert not helen.events("check.answered", agent_2.name)


def test_a_refused_agent_may_come_back_at_once(network: Network) -> None:
    name = unique("bad")
    for _ in range(3):
        agent = network.join(name)
        agent.send(b"frobnicate\n")
        agent.expect_error()
    network.check_answers(network.join(name))


def test_an_error_is_one_line_whatever_was_sent(helen: HelenProcess) -> None:
    agent = helen.agent(unique("bad"))
    agent.send("fröb\x1b[31m\x07\x00nicate 1\r\n".encode())
    message = agent.expect_error()
    assert message.strip()
    assert message.isprintable(), f"{message!r} would write to a terminal"
