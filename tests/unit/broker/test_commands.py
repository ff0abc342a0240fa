"""Every management command with every role, generated from the table by which the broker decides, and the page that
lists them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from scale0.broker.admin.access import RANKS
from tests.unit.broker.world import TOKEN, World

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
TABLE = {name: role for name, (role, _) in World().broker.management.table.items()}


# Promise: MGMT-1
@pytest.mark.parametrize("role", RANKS)
def test_every_role_may_what_the_table_says(role):
    world = World(error_client_limit=1_000)
    body = world.manage("issue_token", name="somebody", role=role)[2][0]
    token = msgspec.json.decode(body)["token"]
    wrong = []
    for command, needed in TABLE.items():
        said = {"command": command, "id": 1, "auth_token": TOKEN if command == "logout" else token}
        told = world.say("frontend-somebody", "MANAGEMENTREQ", said)
        refused = [options["code"] for name, options, _ in told if name == "MANAGEMENTREP"] == [403]
        if refused != (RANKS[role] < RANKS[needed]):
            wrong.append(f"{command} ({needed}) answers {told}")
    assert not wrong, "\n".join(wrong)


def test_the_page_of_the_protocol_lists_every_command_with_its_role():
    section = PAGE.read_text(encoding="utf-8").partition("\n## 8. Management\n")[2].partition("\n## 9.")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (viewer|operator|admin) \|", section, re.MULTILINE)) == TABLE
