"""A change of configuration: stored before it is said, told to everybody, a bounded number in one turn."""

from __future__ import annotations

import json

import msgspec
import pytest

from scale0.broker.core.config_document import PUSH_CHUNK
from scale0.config import ServicePolicy, digest, document_bytes
from scale0.kernel.effects import Effects
from tests.fakes.broker import TOKEN, FakeBroker
from tests.fakes.messages import MAGIC


# Promise: CONF-3
def test_a_change_is_told_to_everybody_in_turns_of_bounded_size():
    broker = FakeBroker(default_heartbeat_interval=10_000.0, max_heartbeats_per_second=1e6)
    names = [f"frontend-{number}" for number in range(2 * PUSH_CHUNK + 7)]
    for name in names:
        broker.exchange(name, "CHECKCONFIG")
    broker.manage("patch_config", set={"heartbeat_liveness": 9})
    told = 0
    while broker.machine.documents._pending:
        broker.sleep(1 / 64)
        broker.turn()
        now = sum(len(broker.received(name)) for name in names)
        assert 0 < now <= PUSH_CHUNK
        told += now
    assert told == len(names)


# Promise: CONF-2
def test_a_change_is_said_to_clients_only_once_it_is_stored(broker):
    broker.exchange("frontend-1", "CHECKCONFIG")
    broker.manage("patch_config", set={"default_heartbeat_interval": 2})
    broker.pass_time(0.1)
    assert broker.received("frontend-1")[0][0] == "CONFIG"
    assert ("frontend-1", "CONFIG") in broker.promised
    broker.manage("patch_config", set={"network": "n"})
    broker.pass_time(0.1)
    assert broker.received("frontend-1")[0][0] == "CONFIGACK"
    assert ("frontend-1", "CONFIGACK") in broker.promised


# Promise: CONF-2
def test_the_answer_to_a_change_waits_for_its_commit_with_everything_it_speaks_of(broker):
    effects = Effects()
    said = {"command": "patch_config", "id": 1, "auth_token": TOKEN, "set": {"network": "n"}}
    broker.machine.receive(
        "frontend", b"admin", [MAGIC, b"MANAGEMENTREQ", json.dumps(said).encode()], broker.now, effects
    )
    assert not effects.sends
    assert len(effects.promises) == 1
    assert [type(write).__name__ for write in effects.writes] == ["PutDocument"]
    assert [frames[0] for _, frames, _ in effects.publishes] == [b"config"]
    assert {event.kind for event in effects.events} == {"config.changed", "management.commanded"}


# Promise: CONF-3
def test_two_changes_in_one_turn_leave_everybody_with_the_newest(broker):
    broker.exchange("frontend-1", "CHECKCONFIG")
    broker.manage("patch_config", set={"default_heartbeat_interval": 2})
    broker.manage("patch_config", set={"network": "n"})
    broker.pass_time(0.1)
    told = broker.received("frontend-1")
    assert [options["config_version"] for _, options, _ in told] == [3] * len(told)
    assert "CONFIG" in [command for command, _, _ in told]


def test_a_client_that_stays_old_gets_it_again_then_must_negotiate_then_goes():
    broker = FakeBroker(default_heartbeat_interval=1.0)
    broker.exchange("frontend-1", "CHECKCONFIG")
    heard: list[object] = []
    for _ in range(40):
        broker.pass_time(1.0)
        for command, options, _ in broker.exchange("frontend-1", "HEARTBEAT", {"config_version": 0}):
            if command != "HEARTBEAT":
                heard.append(options.get("code", command))
        if 426 in heard:
            break
    assert heard[0] == "CONFIG"
    assert "FORCENEGOTIATE" in heard
    assert heard.index("FORCENEGOTIATE") >= 2
    assert heard[-1] == 426


# Promise: CONF-1
@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("default_heartbeat_interval", 1e308, "default_heartbeat_interval: must be at most 86400.0, not 1e+308"),
        ("heartbeat_liveness", 2**62, f"heartbeat_liveness: must be at most 1000, not {2**62}"),
        ("services.a.timeout", 1e308, "services[0].timeout: must be at most 31622400.0, not 1e+308"),
    ],
)
def test_a_time_without_a_sensible_end_is_refused_and_changes_nothing(broker, path, value, reason):
    broker.manage("patch_config", set={"services": [{"name": "a"}]})
    refused = broker.manage("patch_config", set={path: value})
    assert refused.code == 400
    assert refused.body["reasons"] == [reason]
    assert broker.machine.documents.version == 2


# Promise: CONF-3
def test_a_stored_document_with_times_that_are_refused_now_stops_no_start_and_can_be_repaired(broker):
    old = broker.machine.documents.document
    extreme = msgspec.structs.replace(
        old,
        version=2,
        parent=broker.machine.documents.hash,
        default_heartbeat_interval=1e308,
        heartbeat_liveness=2**62,
        services=(ServicePolicy(name="echo", timeout=1e308),),
    )
    effects = Effects()
    broker.machine.documents.change(extreme, "an older version", [], broker.now, effects)
    broker.host.finish(effects)
    broker.crash()
    documents = broker.machine.documents
    assert (documents.version, documents.hash) == (2, digest(document_bytes(extreme))), "its hash is that of its bytes"
    assert documents.document.default_heartbeat_interval == 86_400.0
    broker.join("backend-1", "echo")
    broker.exchange("backend-1", "HEARTBEAT")
    broker.send("frontend-1", "REQUEST", {"service": "echo", "id": 1})
    assert broker.received("backend-1")[0][0] == "REQUEST", "the timeout of the policy is lowered to the longest one"
    assert broker.manage("patch_config", set={"default_heartbeat_interval": 1.0})[1]["code"] == 200
    assert broker.machine.state.interval == 1.0
