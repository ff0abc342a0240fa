"""An operator patches checks and policies; what every client trusts is for administrators."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.admin.document_access import CHANGEABLE
from scale0.config import NetworkDocument
from scale0.config.key_paths import MADE_BY_BROKERS
from tests.fakes.broker import FakeBroker

ROGUE = "tcp://10.6.6.6:5700"
GROUP = {"name": "", "brokers": [{"identity": "broker-1", "endpoints": {"frontend": ROGUE, "server_key": "x" * 40}}]}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def patch(broker: FakeBroker, role: str, **arguments: Any) -> tuple[int, str]:
    token = msgspec.json.decode(broker.manage("issue_token", name=role, role=role)[2][0])["token"]
    request = {"command": "patch_config", "id": 1, "auth_token": token, **arguments}
    answer = broker.exchange("frontend-x", "MANAGEMENTREQ", request)[-1]
    return answer.options["code"], answer.options["message"]


# Promise: PERM-4
@pytest.mark.parametrize(
    "arguments",
    [
        {"set": {"group_config[].brokers.broker-1.endpoints.frontend": ROGUE}},
        {"set": {"group_config[].brokers[broker-1].endpoints": {"frontend": ROGUE}}},
        {"set": {"[group_config]": [GROUP]}},
        {"set": {"group_config": [GROUP]}},
        {"set": {"group_config.other": {"brokers": []}}},
        {"set": {"network": "other"}},
        {"remove": ["group_config[].brokers.broker-1"]},
    ],
)
def test_an_operator_cannot_change_what_every_client_trusts(broker, arguments):
    before = broker.machine.documents.document
    code, message = patch(broker, "operator", **arguments)
    assert code == 403, message
    assert "the role operator may not change" in message
    assert broker.machine.documents.document == before
    event = [event for event in broker.events if event.kind == "management.commanded"][-1]
    assert (event.identity, event.command, event.code) == ("operator", "patch_config", 403)
    assert patch(broker, "admin", **arguments)[0] in (200, 400), "an admin may, if the document is valid"


# Promise: PERM-4
def test_an_operator_changes_checks_and_policies(broker):
    policy = {"set": {"services.orders": {"timeout": 5.0}}}
    assert patch(broker, "operator", **policy)[0] == 200
    assert patch(broker, "operator", set={"checks.disks": {"check": "disk", "interval": 60}})[0] == 200
    assert patch(broker, "operator", set={"default_heartbeat_interval": 2.0})[0] == 200


def test_each_key_of_the_document_is_in_the_table_for_administrators():
    assert set(NetworkDocument.__struct_fields__) == CHANGEABLE["admin"]
    assert CHANGEABLE["operator"] < CHANGEABLE["admin"]
    assert not CHANGEABLE["operator"] & {"group_config", "network", *MADE_BY_BROKERS}
