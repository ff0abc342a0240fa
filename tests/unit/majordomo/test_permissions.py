"""Majordomo and Titanic check the permissions of keys as SCALE0/1 does."""

from __future__ import annotations

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.permissions import NO_RULES, KeyRules
from tests.fakes.majordomo import C01, EMPTY, READY, W01, MajordomoBroker


def user_of(socket: str, _routing_id: bytes) -> str:
    return f"{socket}/one"


def broker_with(frontend: KeyRules = NO_RULES, backend: KeyRules = NO_RULES) -> MajordomoBroker:
    keys = Key("f" * 40, "frontend", "one", rules=frontend), Key("b" * 40, "backend", "one", rules=backend)
    return MajordomoBroker(keys=Keys(user_of, KeyTable(keys)), curve=True)


# Promise: PERM-1
def test_a_majordomo_client_calls_only_what_its_key_may():
    broker = broker_with(backend=KeyRules(("offer:*", "offer:helen.check")))
    broker.say("w1", EMPTY, W01, READY, b"helen.check")
    broker.say("w2", EMPTY, W01, READY, b"echo")
    broker.say("c", EMPTY, C01, b"helen.check", b"{}")
    assert broker.take("w1") == []
    broker.say("c", EMPTY, C01, b"echo", b"{}")
    assert len(broker.take("w2")) == 1


# Promise: PERM-1
def test_titanic_stores_no_request_that_the_key_may_not_call():
    broker = broker_with()
    broker.say("c", EMPTY, C01, b"titanic.request", b"helen.check", b"{}")
    assert broker.take("c")[-1][-1] == b"400"
    broker.say("c", EMPTY, C01, b"titanic.request", b"echo", b"{}")
    assert b"200" in broker.take("c")[-1]


# Promise: PERM-8
def test_titanic_stores_only_what_the_key_may_submit_as_well():
    broker = broker_with(KeyRules((), ("submit:echo",)))
    broker.say("c", EMPTY, C01, b"titanic.request", b"echo", b"{}")
    assert broker.take("c")[-1][-1] == b"400"
    assert [
        (event.command, event.code, event.after) for event in broker.events if event.kind == "management.commanded"
    ] == [("submit", 403, {"service": "echo"})]


# Promise: PERM-8
def test_a_check_that_titanic_runs_is_recorded_with_the_key_that_stored_it():
    helens = KeyRules(("call:helen.check", "submit:helen.check"))
    broker = broker_with(helens, KeyRules(("offer:helen.check",)))
    broker.say("w1", EMPTY, W01, READY, b"helen.check")
    broker.say("c", EMPTY, C01, b"titanic.request", b"helen.check", b"{}")
    assert len(broker.take("w1")) == 1
    [event] = [event for event in broker.events if event.kind == "management.commanded"]
    assert (event.identity, event.command, event.code) == ("frontend/one", "helen.check", 200)


# Promise: PERM-1
def test_a_majordomo_worker_offers_and_a_client_discovers_only_what_its_key_may():
    broker = broker_with(KeyRules((), ("discover:echo",)), KeyRules(("offer:echo",)))
    broker.say("w1", EMPTY, W01, READY, b"other")
    assert not broker.machine.scheduler.offered("other")
    broker.say("w2", EMPTY, W01, READY, b"echo")
    broker.say("c", EMPTY, C01, b"mmi.service", b"echo")
    assert broker.take("c")[-1][-1] == b"404"
