"""Bodies that name checks and notifications are refused before they are decoded, if their numbers would be slow."""

# Promise: WIRE-5
from __future__ import annotations

import pytest

from scale0.broker.admin.check_commands import decode_request, is_json
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import LONG_EXPONENT, MAX_BODY_EXPONENTS
from scale0.monitoring.helen.core.services import CheckBody, decode_body
from scale0.monitoring.helen.edge.notifier import NotificationFailed, read_params

FEW, MANY = (b",".join([b"3e-310"] * (MAX_BODY_EXPONENTS // LONG_EXPONENT + more)) for more in (0, 1))
CHECK = b'{"agent":"a","check":"c","args":{"a":[%b]}}'
UNDECODABLE = b"1e999,"


def test_the_body_of_a_check():
    assert decode_request(CHECK % FEW).agent == decode_body(CHECK % FEW, CheckBody).agent == "a"
    with pytest.raises(ValueError, match="more than 5000 numbers with an exponent"):
        decode_request(CHECK % (UNDECODABLE + MANY))
    with pytest.raises(Refusal, match="more than 5000 numbers with an exponent"):
        decode_body(CHECK % (UNDECODABLE + MANY), CheckBody)


def test_the_answer_of_a_helen():
    assert is_json(b"[%b]" % FEW)
    assert not is_json(b"[%b]" % MANY)


def test_the_params_of_a_notification():
    with pytest.raises(NotificationFailed, match="more than 5000 numbers with an exponent"):
        read_params(b"[%b]" % (UNDECODABLE + MANY))
