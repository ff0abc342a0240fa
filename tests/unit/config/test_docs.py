"""The documentation of configuration knows every key, with its default, and its examples say the same in each form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from scale0 import config

TEXT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")

PLACES: dict[type, str] = {
    config.BrokerConfig: "## A broker's file",
    config.HttpConfig: "Section `management`:",
    config.ExportConfig: "Each of `exports`:",
    config.AdminConfig: "Each of `admins`:",
    config.PeerShare: "Each of `peer_shares`:",
    config.NetworkDocument: "## The network document",
    config.GroupConfig: "Each of `group_config`:",
    config.BrokerEntry: "Each of `brokers`:",
    config.Endpoints: "Section `endpoints`:",
    config.ServicePolicy: "Each of `services`:",
    config.CheckDefinition: "Each of `checks`:",
    config.Flapping: "Section `flapping`:",
    config.NotificationHandler: "Each of `handlers`:",
    config.Downtime: "Each of `downtimes`:",
    config.Silence: "Each of `silences`:",
    config.ClientConfig: "## A client's part",
    config.HelenConfig: "## Helen's file",
    config.NoticeCommand: "Each of `commands`:",
    config.MailServer: "Section `smtp`:",
    config.AgentConfig: "## An agent's file",
    config.Plugin: "Each of `plugins`:",
}


def rows(schema: type) -> dict[str, str]:
    """Key and default of each row of the first table below a schema's heading."""
    after = TEXT.split(f"\n{PLACES[schema]}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    cells = [line.split(" | ") for line in table[0].splitlines()[2:]]
    assert all(len(row) == 4 for row in cells)
    return {row[0].strip("| `"): row[2] for row in cells}


NO_DEFAULT: dict[type, str] = {config.BrokerConfig: "unset", config.Flapping: "the formula's"}
"""What `None` stands for; elsewhere it is the broker's value."""


def documented_default(schema: type, field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT or field.default == ():
        return "none"
    if field.default == "":
        return "blank"
    if field.default is None:
        return NO_DEFAULT.get(schema, "the broker's")
    if isinstance(field.default, msgspec.Struct):
        return "below"
    return f"`{field.default}`" if isinstance(field.default, str) else f"`{json.dumps(field.default)}`"


# Promise: HOUSE-4
@pytest.mark.parametrize("schema", PLACES, ids=lambda schema: schema.__name__)
def test_every_key_is_documented_with_its_default(schema):
    info = msgspec.inspect.type_info(schema)
    assert isinstance(info, msgspec.inspect.StructType)
    assert rows(schema) == {field.name: documented_default(schema, field) for field in info.fields}


def test_the_examples_say_the_same_in_each_form():
    found = {form: TEXT.split(f"```{form}\n", 1)[1].split("```", 1)[0].encode() for form in config.FORMATS}
    configs = [config.parse(data, form, config.BrokerConfig) for form, data in found.items()]
    assert configs[0] == configs[1] == configs[2]
    assert config.check_broker(configs[0]) == []
    assert config.first_document(configs[0]).group_config[0].brokers[0].services == ("thumbs.make", "thumbs.list")


def test_the_example_of_an_open_object_means_what_the_text_says():
    example = TEXT.split("There a list is written as JSON:\n\n", 1)[1].split("\n\n", 1)[0]
    data = "".join(line.removeprefix("    ") + "\n" for line in example.splitlines())
    (check,) = config.parse(data.encode(), "zpl", config.NetworkDocument).checks
    args = {"path": "/var", "only": ["ext4", "xfs"]}
    assert check == config.CheckDefinition(name="disk", interval=60.0, agents=("web-1", "db-*"), args=args)
