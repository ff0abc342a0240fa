"""The line protocol is parsed strictly, the same in each cut, and within its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_DATA_BYTES, MAX_INT, MAX_LINE_BYTES
from scale0.monitoring.protocol.parser import (
    FORMS_OF_BOTH,
    FORMS_TO_AGENT,
    FORMS_TO_HELEN,
    NO_BLOB,
    ParsedItem,
    ParseFault,
    Parser,
)
from tests.fakes.examples import examples

TO_HELEN = {
    b"hello 2 1.0\n": messages.Hello(2, "1.0"),
    b"hello 1 1.0\r\n": messages.Hello(1, "1.0"),
    b"result 5 load 2\n{}\n": messages.Result(5, "load", b"{}"),
    b"result 5 load 2\r\n{}\r\n": messages.Result(5, "load", b"{}"),
    b"result 0 load 0\n\n": messages.Result(0, "load", b""),
    b"result 1 load 1\n\n\n": messages.Result(1, "load", b"\n"),
    b"result 1 load 1\n\r\r\n": messages.Result(1, "load", b"\r"),
    "report 1 größe 3\nabc\n".encode(): messages.Report(1, "größe", b"abc"),
    b"fetch 2147483647 a/b\n": messages.Fetch(MAX_INT, "a/b"),
    b"enrol 4\n\x00\xff\n \n": messages.Enrol(b"\x00\xff\n "),
    b"ping 0\n": messages.Ping(0),
    b"pong 7\n": messages.Pong(7),
    b"open 1 2\n{}\n": messages.Open(1, b"{}"),
    b"data 1 1\n\xff\n": messages.Data(1, b"\xff"),
    b"resize 1 80 25\n": messages.Resize(1, 80, 25),
    b"close 1 0\n": messages.Close(1, 0),
}
TO_AGENT = {
    b"check load 3 2\n{}\n": messages.Check("load", 3, b"{}"),
    b"reload\n": messages.Reload(),
    b"reload\r\n": messages.Reload(),
    b"error you did wrong,  twice \n": messages.Error("you did wrong,  twice "),
    b"error\n": messages.Error(""),
    b"error \n": messages.Error(""),
    b"accepted 30\n": messages.Accepted(30),
    b"redirect host:4166\n": messages.Redirect("host:4166"),
    b"redirect [::1]:4166\n": messages.Redirect("[::1]:4166"),
    b"schedule 1 2\n{}\n": messages.Schedule(1, b"{}"),
    b"ack 1000\n": messages.Ack(1_000),
    b"file 1 x 0\n\n": messages.File(1, "x", b""),
    b"upgrade 1 2\n{}\n": messages.Upgrade(1, b"{}"),
    b"enrolled 3\nPEM\n": messages.Enrolled(b"PEM"),
    b"ping 1\n": messages.Ping(1),
    b"dance with me\n": messages.UnknownMessage("dance with me"),
    b"hello 2 1.0\n": messages.UnknownMessage("hello 2 1.0"),
    b"\n": messages.UnknownMessage(""),
    b"Reload\n": messages.UnknownMessage("Reload"),
    b" reload\n": messages.UnknownMessage(" reload"),
}

BAD_NUMBERS = [
    *("", "-1", "+5", "1_000", "007", "00", "1.0", "1e3", "0x10", "0b1", "1,000", "ten", "NaN", "inf"),
    *("2147483648", "4294967296", "99999999999999999999", "1" * 5_000),
    *("٣", "३", "３", "²", "①", "1\u00a0", "\u20071", "5\t", "\t5", "5\x00", "5\r5", "\x0b5", "5\ufeff"),
]


def faults(data: bytes, to_helen: bool = True) -> str:
    """The reason for which these bytes are refused; they give nothing else."""
    parser = Parser(to_helen)
    parsed = parser.feed(data)
    assert [type(one) for one in parsed] == [ParseFault]
    assert parser.ended
    assert parser.buffered_bytes == 0
    return reason(parsed[0])


def reason(parsed: ParsedItem) -> str:
    assert isinstance(parsed, ParseFault)
    assert parsed.reason.isprintable()
    assert len(parsed.reason) < 300
    return parsed.reason


# Promise: AGENT-1
@pytest.mark.parametrize(("data", "message"), TO_HELEN.items())
def test_helen_parses_what_an_agent_sends(data, message):
    assert Parser(to_helen=True).feed(data) == [message]


# Promise: AGENT-1
@pytest.mark.parametrize(("data", "message"), TO_AGENT.items())
def test_an_agent_parses_what_helen_sends(data, message):
    assert Parser(to_helen=False).feed(data) == [message]


def test_every_command_has_an_example_here():
    for examples_of, forms in ((TO_HELEN, FORMS_TO_HELEN), (TO_AGENT, FORMS_TO_AGENT)):
        assert {form.command for form in forms} <= {data.split()[0] for data in examples_of if data.strip()}
    assert {form.command for form in FORMS_OF_BOTH} <= {data.split()[0] for data in TO_HELEN}


# Promise: AGENT-2
@pytest.mark.parametrize(
    "line", ["hello {} 1.0", "result {} load 0\n", "result 1 load {}\n", "ping {}", "resize 1 {} 25", "enrol {}\n"]
)
def test_a_bad_number_is_refused_wherever_it_stands(line):
    for number in BAD_NUMBERS:
        assert "number" in faults(line.format(number).encode() + b"\n"), number


@pytest.mark.parametrize("line", ["accepted {}", "ack {} ", "check load {} 0\n", "check load 1 {}\n"])
def test_an_agent_is_as_strict_with_numbers(line):
    for number in BAD_NUMBERS:
        reason = faults(line.format(number).encode() + b"\n", to_helen=False)
        assert "number" in reason or "parameters" in reason, number


@pytest.mark.parametrize("number", [0, 1, 9, 10, 2_147_483_646, MAX_INT])
def test_every_int32_without_a_sign_is_a_number(number):
    assert Parser(to_helen=True).feed(b"ping %d\n" % number) == [messages.Ping(number)]


# Promise: AGENT-2
@pytest.mark.parametrize(
    "data",
    [
        b"hello 2\n",
        b"hello 2 1.0 more\n",
        b"hello  2 1.0\n",
        b"hello 2  1.0\n",
        b"hello 2 1.0 \n",
        b"hello\n",
        b"hello\t2\t1.0\n",
        b"result 1 load\n",
        b"result 1 2\n{}\n",
        b"result 1 a b 2\n{}\n",
        b"result load 1 2\n{}\n",
        b"ping\n",
        b"ping 1 2\n",
        b"enrol\n",
        b"fetch 1 \n",
        b"report 1  0\n\n",
        b"\n",
        b"\r\n",
        b" \n",
        b" hello 2 1.0\n",
        b"HELLO 2 1.0\n",
        b"hello\x00 2 1.0\n",
        b"hell 2 1.0\n",
        b"check load 1 0\n\n",
        b"reload\n",
        b"error x\n",
        b"accepted 3\n",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\n",
    ],
)
def test_helen_refuses_a_line_that_is_no_command_of_hers(data):
    faults(data)


@pytest.mark.parametrize(
    "data", [b"reload now\n", b"accepted\n", b"accepted 3 4\n", b"check load 1\n", b"redirect  a:1\n", b"ack 1 \n"]
)
def test_an_agent_refuses_a_known_command_in_the_wrong_form(data):
    faults(data, to_helen=False)


# Promise: AGENT-2
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x80"])
def test_invalid_utf8_is_refused(bad):
    assert "UTF-8" in faults(b"hello 2 " + bad + b"\n")
    assert "UTF-8" in faults(b"error " + bad + b"\n", to_helen=False)
    assert "UTF-8" in faults(b"strange " + bad + b"\n", to_helen=False)
    assert "unknown command" in faults(bad + b"\n")


def test_an_agent_goes_on_after_a_command_that_it_does_not_know():
    parser = Parser(to_helen=False)
    assert parser.feed(b"sing 1 2\nreload\n") == [messages.UnknownMessage("sing 1 2"), messages.Reload()]


# Promise: AGENT-1
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_of_exactly_the_limit_passes_and_one_more_byte_does_not(end):
    software = "x" * (MAX_LINE_BYTES - len("hello 2 "))
    line = f"hello 2 {software}".encode()
    assert len(line) == MAX_LINE_BYTES == 8_192
    assert Parser(to_helen=True).feed(line + end) == [messages.Hello(2, software)]
    assert "8192" in faults(line + b"x" + end)


# Promise: AGENT-2
def test_a_line_that_is_too_long_is_refused_before_its_end_comes():
    parser = Parser(to_helen=True)
    assert parser.feed(b"x" * MAX_LINE_BYTES) == []
    assert "8192" in reason(parser.feed(b"x")[0])
    parser = Parser(to_helen=True)
    assert parser.feed(b"x" * MAX_LINE_BYTES + b"\r") == []
    assert "8192" in reason(parser.feed(b"\r")[0])


# Promise: AGENT-1
def test_a_blob_of_exactly_the_limit_passes_and_one_more_byte_does_not():
    body = bytes(range(256)) * (MAX_BLOB_BYTES // 256)
    assert len(body) == MAX_BLOB_BYTES == 1_048_576
    parser = Parser(to_helen=True)
    assert parser.feed(b"result 1 a 1048576\n" + body + b"\nping 1\n") == [
        messages.Result(1, "a", body),
        messages.Ping(1),
    ]
    # The header alone is enough: not a byte of such a blob is read.
    assert "1048577" in faults(b"result 1 a 1048577\n")
    assert "1048577" in faults(b"check a 1 1048577\n", to_helen=False)


def test_data_of_a_terminal_has_a_smaller_limit():
    body = b"\n" * MAX_DATA_BYTES
    assert Parser(to_helen=True).feed(b"data 1 16384\n" + body + b"\n") == [messages.Data(1, body)]
    assert "16385" in faults(b"data 1 16385\n")


# Promise: AGENT-2
@pytest.mark.parametrize("tail", [b"x", b"}\n", b"\r\r\n", b"\rx", b" \n", b"\x00\n"])
def test_a_blob_without_its_end_of_line_is_refused_as_soon_as_that_is_known(tail):
    parser = Parser(to_helen=True)
    parsed = parser.feed(b"result 1 a 2\n{}" + tail)
    assert "end of line" in reason(parsed[0])
    assert len(parsed) == 1


# Promise: AGENT-2
def test_after_a_fault_all_is_dropped():
    parser = Parser(to_helen=True)
    parsed = parser.feed(b"ping 1\nping x\nping 2\n")
    assert parsed[0] == messages.Ping(1)
    assert "bad number" in reason(parsed[1])
    assert len(parsed) == 2
    assert parser.feed(b"ping 3\n") == []
    assert parser.feed(b"x" * 100_000) == []
    assert parser.buffered_bytes == 0


def test_a_big_blob_in_single_bytes_costs_no_more_than_its_bytes():
    parser = Parser(to_helen=True)
    parser.feed(b"result 1 a 200000\n")
    for count in range(200_000):
        assert parser.feed(b"x") == []
        assert parser.buffered_bytes == count + 1
    assert parser.feed(b"\n") == [messages.Result(1, "a", b"x" * 200_000)]
    assert parser.buffered_bytes == 0


def test_a_line_after_a_blob_is_read_as_soon_as_it_is_whole():
    parser = Parser(to_helen=True)
    assert parser.feed(b"result 1 a 1000\n" + b"x" * 500) == []
    assert parser.feed(b"x" * 500 + b"\npi") == [messages.Result(1, "a", b"x" * 1_000)]
    assert parser.feed(b"ng 1\npin") == [messages.Ping(1)]
    assert parser.feed(b"g 2\n") == [messages.Ping(2)]


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]


numbers = st.sampled_from(
    [b"0", b"1", b"3", b"12", b"007", b"+5", b"2147483647", b"2147483648", b"1048577", b"\xd9\xa3"]
)
strings = st.sampled_from([b"load", b"", b"\xff", "é".encode(), b"a\rb", b"\x00"])
commands = st.sampled_from([form.command for form in (*FORMS_TO_HELEN, *FORMS_TO_AGENT, *FORMS_OF_BOTH)])
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b" \n", b"\n\n"])
lines = st.builds(
    lambda command, parts, end: b" ".join([command, *parts]) + end,
    commands,
    st.lists(st.one_of(numbers, strings), max_size=4),
    ends,
)
good = st.sampled_from([*TO_HELEN, *TO_AGENT])
long_lines = st.builds(lambda more, end: b"ping " + b"1" * more + end, st.integers(8_180, 8_200), ends)
soup = st.lists(st.one_of(good, good, lines, st.binary(max_size=12), long_lines), max_size=12).map(b"".join)


# Promise: AGENT-1
@examples(300)
@given(soup, st.lists(st.integers(0, 20_000), max_size=20), st.booleans())
def test_whatever_the_bytes_and_their_cuts_the_messages_are_the_same(data, cuts, to_helen):
    whole = Parser(to_helen)
    at_once = whole.feed(data)
    assert all(not isinstance(message, ParseFault) for message in at_once[:-1])
    assert whole.ended == (bool(at_once) and isinstance(at_once[-1], ParseFault))
    parser = Parser(to_helen)
    in_parts: list[ParsedItem] = []
    for piece in in_pieces(data, cuts):
        in_parts += parser.feed(piece)
        assert parser.buffered_bytes <= max(MAX_LINE_BYTES, *(form.max_blob_bytes for form in FORMS_TO_HELEN)) + 1
    assert in_parts == at_once
    if len(data) > 2_000:
        return
    byte_by_byte = Parser(to_helen)
    one_by_one: list[ParsedItem] = []
    for number in data:
        one_by_one += byte_by_byte.feed(bytes([number]))
        if byte_by_byte._form is None:
            assert byte_by_byte.buffered_bytes <= MAX_LINE_BYTES + 1
        else:
            assert byte_by_byte.buffered_bytes <= byte_by_byte._blob_bytes + 1
    assert one_by_one == at_once


# Promise: AGENT-2
@examples(300)
@given(st.lists(st.binary(max_size=64), max_size=20), st.booleans())
def test_no_bytes_raise(pieces, to_helen):
    parser = Parser(to_helen)
    parsed = [message for piece in pieces for message in parser.feed(piece)]
    for message in parsed:
        if isinstance(message, ParseFault):
            reason(message)
    assert parser.buffered_bytes <= sum(map(len, pieces))


def test_each_side_has_one_form_for_a_command():
    for forms in ((*FORMS_TO_HELEN, *FORMS_OF_BOTH), (*FORMS_TO_AGENT, *FORMS_OF_BOTH)):
        assert len({form.command for form in forms}) == len(forms)
        assert all(form.max_blob_bytes == NO_BLOB or form.max_blob_bytes <= MAX_BLOB_BYTES for form in forms)
