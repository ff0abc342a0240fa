"""A change of configuration: stored before it is said, told to everybody, a bounded number in one turn."""

from __future__ import annotations

import json

from scale0.broker.core.config_document import PUSH_CHUNK
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
    assert [frames[0] for _, frames in effects.publishes] == [b"config"]
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
