"""Z85: as ZeroMQ's own tools write and read it."""

from __future__ import annotations

import pytest
import zmq
import zmq.utils.z85
from hypothesis import given
from hypothesis import strategies as st

from scale0.transport.core import z85
from scale0.transport.edge.curve_certificates import is_key, new_certificate, public_of


@given(st.binary(max_size=64).filter(lambda data: len(data) % 4 == 0))
def test_it_is_what_zeromq_writes_and_reads(data: bytes) -> None:
    text = z85.encode(data)
    assert text == zmq.utils.z85.encode(data).decode()
    assert z85.decode(text) == data


@pytest.mark.parametrize("text", ["abcd", "abcd ", "abcdé", "%nSc1", "#####", "~~~~~", "abcde" + "#####"])
def test_what_is_no_z85_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="Z85") as error:
        z85.decode(text)
    assert text not in str(error.value)


def test_data_of_another_length_has_no_text() -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        z85.encode(b"abc")


def test_a_new_pair_is_one_of_libzmqs() -> None:
    made = new_certificate()
    assert is_key(made.public)
    assert zmq.curve_public(made.secret.encode()).decode() == made.public == public_of(made.secret)
    public, secret = zmq.curve_keypair()
    assert public_of(secret.decode()) == public.decode()
