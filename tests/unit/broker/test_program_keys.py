"""Programs on the broker's machine share one key: they choose their identities, and each has limits of its own."""

# Promise: CURVE-21
from __future__ import annotations

import pytest

from scale0.transport.core.codec import MAGIC
from tests.fakes.broker import FakeBroker
from tests.unit.broker.test_permissions import broker_with, key

LOCAL = key("frontend", "local", is_program=True)
WEB = key("frontend", "web")


def names(broker: FakeBroker, who: str, identity: str) -> str:
    """The first command of the answer to a client that wants this identity."""
    return broker.exchange(who, "CHECKCONFIG", {"identity": identity, "version": 0})[0].command


@pytest.mark.parametrize(
    ("who", "identity", "permitted"),
    [
        ("frontend-local", "thumbs-1", True),
        ("frontend-local", "local.x", True),
        ("frontend-local", "web", False),
        ("frontend-local", "web.1", False),
        ("frontend-web", "web.1", True),
        ("frontend-web", "thumbs-1", False),
    ],
)
def test_a_program_may_use_every_identity_that_no_stored_key_claims(who, identity, permitted):
    answer = names(broker_with(LOCAL, WEB), who, identity)
    assert (answer != "DISCONNECTERROR") is permitted


@pytest.mark.parametrize(("name", "together"), [("local", False), ("web", True)])
def test_bad_messages_of_one_program_ban_no_other(name, together):
    broker = broker_with(LOCAL, WEB)
    other = f"frontend-{name}-2"
    assert names(broker, other, f"{name}.2") != "DISCONNECTERROR"
    for _ in range(broker.machine.state.limits.error_client_limit + 1):
        broker.send_frames(f"frontend-{name}", [MAGIC, b"NONSENSE", b"{}"])
    broker.received(other)
    answers = broker.exchange(other, "CHECKCONFIG", {"identity": f"{name}.2", "version": 0})
    assert (answers == []) is together
