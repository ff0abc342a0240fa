"""Each mistake that Helen answers with `error` and close, without an effect on other agents (PROTOCOL 10)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.monitoring.network import Helen, Network, answer, unique
from tests.wire.monitoring.raw_agent import RawAgent

pytestmark = pytest.mark.processes

MIB = 1_048_576
KIB8 = 8_192


@pytest.fixture
def bystander(network: Network) -> Iterator[RawAgent]:
    """An honest agent beside the one under test: it is connected before, and answers after."""
    name = unique("honest")
    agent = network.join(name)
    yield agent
    asked = network.check(name)
    agent.answer(agent.hear("check"), {"state": "ok"})
    assert answer(asked)["state"] == "ok"


BAD_NUMBERS = {
    "leading zero": b"01",
    "plus": b"+1",
    "minus": b"-1",
    "separator": b"1_0",
    "fraction": b"1.0",
    "exponent": b"1e0",
    "hex": b"0x1",
    "arabic digit": "١".encode(),
    "superscript": "²".encode(),
    "over int32": b"2147483648",
    "far over": b"9" * 5_000,
    "empty": b"",
    "word": b"one",
}


# Promise: AGENT-2
@pytest.mark.parametrize("number", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_a_bad_number_in_hello(helen: Helen, bystander: RawAgent, number: bytes) -> None:
    agent = helen.agent(unique("bad"), None)
    agent.send(b"hello %s raw/1\n" % number)
    agent.refused()


# Promise: AGENT-2
@pytest.mark.parametrize("number", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_a_bad_message_id_or_length_in_result(network: Network, number: bytes) -> None:
    name = unique("bad")
    agent = network.join(name)
    network.check(name, timeout=1)
    asked = agent.hear("check").number
    agent.send(b"result %d c %s\n{}\n" % (asked, number))
    agent.refused()
    agent = network.join(name)
    agent.send(b"result %s c 2\n{}\n" % number)
    agent.refused()


# Promise: AGENT-2
@pytest.mark.parametrize("number", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_a_bad_number_in_version_2(network: Network, number: bytes) -> None:
    for line in (
        b"ping %s\n",
        b"pong %s\n",
        b"fetch %s stage0\n",
        b"report %s disk 2\n{}\n",
        b"report 1 disk %s\n{}\n",
    ):
        agent = network.join(unique("bad"), 2)
        agent.send(line % number)
        agent.refused()


# Promise: AGENT-2
@pytest.mark.parametrize("text", [b"\xff", b"a\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_invalid_utf_8(helen: Helen, network: Network, bystander: RawAgent, text: bytes) -> None:
    agent = helen.agent(unique("bad"), None)
    agent.send(b"hello 1 " + text + b"\n")
    agent.refused()
    name = unique("bad")
    agent = network.join(name)
    network.check(name, timeout=1)
    agent.send(b"result %d %s 2\n{}\n" % (agent.hear("check").number, text))
    agent.refused()
    agent = network.join(unique("bad"), 2)
    agent.send(b"report 1 " + text + b" 2\n{}\n")
    agent.refused()


SHAPES = {
    "nothing": b"hello\n",
    "no software": b"hello 1\n",
    "empty software": b"hello 1 \n",
    "one too many": b"hello 1 raw/1 more\n",
    "two spaces": b"hello  1 raw/1\n",
    "space before": b" hello 1 raw/1\n",
    "space after": b"hello 1 raw/1 \n",
    "tab": b"hello\t1\traw/1\n",
    "upper case": b"HELLO 1 raw/1\n",
}


# Promise: AGENT-2
@pytest.mark.parametrize("line", SHAPES.values(), ids=SHAPES)
def test_a_hello_that_is_none(helen: Helen, bystander: RawAgent, line: bytes) -> None:
    agent = helen.agent(unique("bad"), None)
    agent.send(line)
    agent.refused()


BEFORE_HELLO = {
    "result": b"result 1 c 2\n{}\n",
    "ping": b"ping 1\n",
    "pong": b"pong 1\n",
    "report": b"report 1 disk 2\n{}\n",
    "fetch": b"fetch 1 stage0\n",
    "unknown": b"frobnicate\n",
    "empty line": b"\n",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "binary": bytes(range(256)) + b"\n",
}


# Promise: AGENT-2
@pytest.mark.parametrize("line", BEFORE_HELLO.values(), ids=BEFORE_HELLO)
def test_a_command_before_hello(helen: Helen, bystander: RawAgent, line: bytes) -> None:
    agent = helen.agent(unique("bad"), None)
    agent.send(line)
    agent.refused()


AFTER_HELLO = {
    "second hello": b"hello 1 raw/1\n",
    "second hello of another version": b"hello 2 raw/1\n",
    "unknown": b"frobnicate 1 2 3\n",
    "empty line": b"\n",
    "upper case": b"RESULT 1 c 2\n{}\n",
    "check": b"check c 1 2\n{}\n",
    "reload": b"reload\n",
    "error": b"error I am not allowed to say this\n",
    "accepted": b"accepted 30\n",
    "redirect": b"redirect 127.0.0.1:1\n",
    "schedule": b"schedule 1 2\n{}\n",
    "ack": b"ack 1\n",
    "file": b"file 1 stage0 0\n\n",
    "result never issued": b"result 7 c 2\n{}\n",
    "result of id 0": b"result 0 c 2\n{}\n",
    "result of the last id": b"result 2147483647 c 2\n{}\n",
    "result without a name": b"result 1 2\n{}\n",
    "result of nothing": b"result\n",
}


# Promise: AGENT-2
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("line", AFTER_HELLO.values(), ids=AFTER_HELLO)
def test_what_may_not_be_said_after_hello(network: Network, bystander: RawAgent, version: int, line: bytes) -> None:
    agent = network.join(unique("bad"), version)
    agent.send(line)
    agent.refused()


VERSION_2 = {"ping": b"ping 1\n", "report": b'report 1 d 14\n{"state":"ok"}\n', "fetch": b"fetch 1 stage0\n"}


# Promise: AGENT-3
@pytest.mark.parametrize("line", VERSION_2.values(), ids=VERSION_2)
def test_a_word_of_version_2_is_unknown_in_version_1(network: Network, line: bytes) -> None:
    agent = network.join(unique("bad"), 1)
    agent.send(line)
    agent.refused()


# Promise: AGENT-2
def test_a_result_that_was_given_already(network: Network, bystander: RawAgent) -> None:
    name = unique("bad")
    agent = network.join(name)
    asked = network.check(name)
    heard = agent.hear("check")
    agent.answer(heard, {"state": "ok", "message": "first"})
    agent.answer(heard, {"state": "critical", "message": "second"})
    agent.refused()
    assert answer(asked)["message"] == "first"


# Promise: AGENT-2
@pytest.mark.parametrize("end", [b"X", b"", b" \n", b"\r\r\n"])
def test_a_blob_without_its_newline(network: Network, bystander: RawAgent, end: bytes) -> None:
    name = unique("bad")
    agent = network.join(name)
    network.check(name, timeout=1)
    agent.send(b"result %d c 2\n{}" % agent.hear("check").number + end + b"ping 1\n")
    agent.refused()


def test_a_blob_shorter_than_its_header_takes_the_next_line_in(network: Network, bystander: RawAgent) -> None:
    name = unique("bad")
    agent = network.join(name)
    network.check(name, timeout=1)
    agent.send(b"result %d c 1\n{}\n" % agent.hear("check").number)
    agent.refused()


# Promise: AGENT-1
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["newline", "crlf"])
@pytest.mark.parametrize("length", [KIB8 - 1, KIB8])
def test_a_line_of_8_kib_is_taken(helen: Helen, length: int, end: bytes) -> None:
    """Counted without its end."""
    agent = helen.agent(unique("long"), None)
    agent.send(b"hello 2 ".ljust(length, b"v") + end)
    agent.hear("accepted")
    agent.hear("schedule")
    agent.send(b"ping 1\n")
    agent.hear("pong")


def test_the_longest_name_that_can_be_fetched_is_not_helens_fault(network: Network) -> None:
    """The line is as long as a line may be; the answer would be longer. That is nothing to fall over."""
    agent = network.join(unique("long"), 2)
    line = b"fetch 1 ".ljust(KIB8, b"n")
    agent.send(line + b"\n")
    heard = agent.message()
    if heard.command == "file":
        assert heard.words[2] == line[8:]
    else:
        assert heard.command == "error"
        assert b"failed" not in b" ".join(heard.words), heard


# Promise: AGENT-1
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""], ids=["newline", "crlf", "never ends"])
def test_a_line_over_8_kib(network: Network, helen: Helen, bystander: RawAgent, end: bytes) -> None:
    over = KIB8 + 1 if end else KIB8 + 2
    agent = network.join(unique("long"), 2)
    agent.send(b"fetch 1 ".ljust(over, b"n") + end)
    agent.refused()
    agent = helen.agent(unique("long"), None)
    agent.send(b"hello 1 ".ljust(over, b"n") + end)
    agent.refused()


def test_a_line_without_an_end_is_refused_though_megabytes_follow(helen: Helen, bystander: RawAgent) -> None:
    agent = helen.agent(unique("long"), None)
    agent.send(b"x" * (4 * MIB))
    agent.refused()


@pytest.mark.parametrize("length", [MIB + 1, 2_147_483_647])
@pytest.mark.parametrize("line", [b"result %d c %d\n", b"report %d c %d\n"])
def test_a_blob_too_long_is_refused_on_its_header(network: Network, line: bytes, length: int) -> None:
    name = unique("big")
    agent = network.join(name, 2)
    network.check(name, timeout=1)
    agent.send(line % (agent.hear("check").number, length))
    agent.refused()


# Promise: AGENT-2
def test_what_follows_an_error_is_not_obeyed(network: Network, helen: Helen) -> None:
    name = unique("bad")
    agent = network.join(name, 2)
    agent.send(b'frobnicate\nreport 1 disk 32\n{"state":"ok","spool":"e","n": 1}\nping 9\n')
    agent.refused()
    assert not helen.events("check.answered", name)


def test_a_refused_agent_may_come_back_at_once(network: Network) -> None:
    name = unique("bad")
    for _ in range(3):
        agent = network.join(name)
        agent.send(b"frobnicate\n")
        agent.refused()
    agent = network.join(name)
    asked = network.check(name)
    agent.answer(agent.hear("check"), {"state": "ok"})
    assert answer(asked)["state"] == "ok"


def test_an_error_is_one_line_whatever_was_said(helen: Helen) -> None:
    agent = helen.agent(unique("bad"), None)
    agent.send("fröb\x1b[31m\x07\x00nicate 1\r\n".encode())
    message = agent.refused()
    assert message.strip()
    assert message.isprintable(), f"{message!r} would write to a terminal"
