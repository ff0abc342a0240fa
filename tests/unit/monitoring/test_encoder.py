"""Encoded messages are parsed to equal messages; what cannot be parsed is never encoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import MAX_ERROR_CHARS, encode, in_one_line
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_DATA_BYTES, MAX_INT, MAX_LINE_BYTES
from scale0.monitoring.protocol.parser import (
    FORMS_OF_BOTH,
    FORMS_TO_AGENT,
    FORMS_TO_HELEN,
    INT,
    NO_BLOB,
    STRING,
    CommandForm,
    Parser,
)
from tests.fakes.examples import examples

ints = st.one_of(st.integers(0, MAX_INT), st.sampled_from([0, 1, MAX_INT]))


def texts(besides: str, min_size: int) -> st.SearchStrategy[str]:
    characters = st.characters(exclude_categories=["Cs"], exclude_characters=besides)
    return st.text(characters, min_size=min_size, max_size=40).filter(lambda text: not text.endswith("\r"))


rests = texts("\n", 0)
strings = texts("\n ", 1)
bodies = st.one_of(st.binary(max_size=200), st.sampled_from([b"", b"\n", b"\r\n", b"\r", b"ping 1\n", b"x" * 5_000]))


def written(form: CommandForm) -> st.SearchStrategy[Any]:
    parts = [ints if kind == INT else strings if kind == STRING else rests for kind in form.parameters]
    return st.builds(form.message_class, *parts, *([] if form.max_blob_bytes == NO_BLOB else [bodies]))


sent_by_agents = st.one_of([written(form) for form in (*FORMS_TO_HELEN, *FORMS_OF_BOTH)])
sent_by_helen = st.one_of([written(form) for form in (*FORMS_TO_AGENT, *FORMS_OF_BOTH)])
conversations = st.one_of(
    st.tuples(st.just(True), st.lists(sent_by_agents, max_size=8)),
    st.tuples(st.just(False), st.lists(sent_by_helen, max_size=8)),
)


# Promise: AGENT-1
@examples(400)
@given(conversations, st.lists(st.integers(0, 10_000), max_size=20))
def test_what_is_encoded_is_parsed_as_the_same_messages_in_every_cut(conversation, cuts):
    to_helen, sent = conversation
    data = b"".join(map(encode, sent))
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    parser = Parser(to_helen)
    parsed = []
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        parsed += parser.feed(data[begin:end])
    assert parsed == sent
    assert parser.buffered_bytes == 0


# Promise: AGENT-1
def test_the_bytes_are_those_of_the_contract():
    assert encode(messages.Hello(2, "1.0")) == b"hello 2 1.0\n"
    assert encode(messages.Check("load", 3, b"{}")) == b"check load 3 2\n{}\n"
    assert encode(messages.Result(3, "load", b"")) == b"result 3 load 0\n\n"
    assert encode(messages.Reload()) == b"reload\n"
    assert encode(messages.Error("not so, please")) == b"error not so, please\n"
    assert encode(messages.Resize(1, 80, 25)) == b"resize 1 80 25\n"
    assert encode(messages.Enrol(b"{}")) == b"enrol 2\n{}\n"


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "a\n", "\ud800", " a", 5, b"a", None])
def test_a_string_that_would_be_read_otherwise_is_not_written(bad):
    for message in (
        messages.Hello(1, bad),
        messages.Redirect(bad),
        messages.Check(bad, 1, b""),
        messages.Fetch(1, bad),
    ):
        with pytest.raises(ValueError):
            encode(message)


def test_a_return_at_the_end_of_a_line_would_be_lost_and_is_not_written():
    for message in (messages.Hello(1, "a\r"), messages.Redirect("\r"), messages.Error("so\r")):
        with pytest.raises(ValueError):
            encode(message)
    assert Parser(to_helen=True).feed(encode(messages.Result(1, "a\r", b""))) == [messages.Result(1, "a\r", b"")]


@pytest.mark.parametrize("bad", [-1, MAX_INT + 1, True, 1.0, "1", None])
def test_a_number_that_is_no_int32_is_not_written(bad):
    for message in (
        messages.Ping(bad),
        messages.Hello(bad, "1"),
        messages.Close(1, bad),
        messages.Report(bad, "a", b""),
    ):
        with pytest.raises(ValueError):
            encode(message)


@pytest.mark.parametrize("bad", ["a\nb", "\n", "a\r\n", "\ud800", None])
def test_an_error_of_more_than_one_line_is_not_written(bad):
    with pytest.raises(ValueError):
        encode(messages.Error(bad))


def test_what_is_over_a_limit_is_not_written():
    assert len(encode(messages.Error("x" * (MAX_LINE_BYTES - 6)))) == MAX_LINE_BYTES + 1
    assert encode(messages.Data(1, b"x" * MAX_DATA_BYTES))
    assert encode(messages.Result(1, "a", b"x" * MAX_BLOB_BYTES))
    for message in (
        messages.Error("x" * (MAX_LINE_BYTES - 5)),
        messages.Data(1, b"x" * (MAX_DATA_BYTES + 1)),
        messages.Result(1, "a", b"x" * (MAX_BLOB_BYTES + 1)),
        messages.Report(1, "ü" * MAX_LINE_BYTES, b""),
        # The length of the blob belongs to the line as well.
        messages.Result(1, "a" * (MAX_LINE_BYTES - len("result 1  ")), b"x"),
    ):
        with pytest.raises(ValueError):
            encode(message)


def test_only_bytes_are_a_blob():
    for body in ("{}", bytearray(b"{}"), None):
        with pytest.raises(ValueError):
            encode(messages.Result(1, "a", body))  # type: ignore[arg-type]


def test_an_unknown_message_is_never_encoded():
    with pytest.raises(ValueError):
        encode(messages.UnknownMessage("dance"))


@given(st.text(max_size=1_000))
def test_any_text_can_be_made_an_error_of_one_line(text):
    line = in_one_line(text)
    assert len(line) <= MAX_ERROR_CHARS
    assert Parser(to_helen=False).feed(encode(messages.Error(line))) == [messages.Error(line)]
