"""The network document: its bytes, its first version, a client's part of it, and what is wrong with it as a whole."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from hypothesis import given

from scale0.config import (
    BrokerConfig,
    BrokerEntry,
    CheckDefinition,
    Endpoints,
    GroupConfig,
    NetworkDocument,
    ServicePolicy,
    Silence,
    check_document,
    client_config,
    differ_only_in_version,
    digest,
    document_bytes,
    first_document,
    parse,
)
from scale0.kernel.errors import ConfigError
from tests.unit.config import strategies

EAST = GroupConfig(name="east", fallback_groups=("west", "north"), brokers=(BrokerEntry(identity="e1"),))
WEST = GroupConfig(name="west", brokers=(BrokerEntry(identity="w1", services=("a",)),))
NORTH = GroupConfig(name="north")
SOUTH = GroupConfig(name="south")
DOCUMENT = NetworkDocument(
    version=7,
    group_config=(SOUTH, NORTH, WEST, EAST),
    checks=(CheckDefinition(name="disk", interval=60.0),),
    parent="ab" * 32,
)


def test_published_bytes_are_compact_in_declared_order_and_sorted_inside_open_objects():
    one = NetworkDocument(
        services=(ServicePolicy(name="s", timeout=2.0),),
        checks=(CheckDefinition(name="a", args={"d": {"f": 1, "e": 2}, "c": 2}),),
    )
    assert document_bytes(one) == (
        b'{"network":"scale0","version":1,"default_heartbeat_interval":1.0,"heartbeat_liveness":3,"group_config":[],'
        b'"services":[{"name":"s","timeout":2.0}],"checks":[{"name":"a","check":"","args":{"c":2,"d":{"e":2,"f":1}},'
        b'"interval":60.0,"timeout":10.0,"agents":[],"labels":{},"thresholds":{},"max_attempts":3,'
        b'"flapping":{"formula":"icinga","start":null,"end":null,"suppress":false},"depends_on":[],"handlers":[],'
        b'"enabled":true}],"handlers":[],'
        b'"downtimes":[],"silences":[],"parent":""}'
    )
    other = msgspec.structs.replace(one, checks=(CheckDefinition(name="a", args={"c": 2, "d": {"e": 2, "f": 1}}),))
    assert document_bytes(other) == document_bytes(one)


@given(strategies.documents)
def test_published_bytes_are_read_back_to_the_same_bytes(document):
    data = document_bytes(document)
    again = parse(data, "json", NetworkDocument)
    assert again == document
    assert document_bytes(again) == data


def test_the_digest_is_sha256_of_the_exact_bytes():
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_the_first_document_knows_the_broker_that_made_it():
    config = BrokerConfig(
        identity="e1",
        network="n",
        group="east",
        fallback_groups=("west",),
        services=("a",),
        default_heartbeat_interval=2.5,
    )
    document = first_document(config)
    assert (document.network, document.version, document.parent) == ("n", 1, "")
    assert document.default_heartbeat_interval == 2.5
    east, west = document.group_config
    assert (east.name, east.fallback_groups, west) == ("east", ("west",), GroupConfig(name="west"))
    assert east.brokers == (BrokerEntry(identity="e1", services=("a",), endpoints=config.endpoints()),)


def test_the_first_document_keeps_what_the_file_says_of_groups():
    written = Endpoints(frontend="tcp://nat.example:1")
    group = GroupConfig(
        name="east", fallback_groups=("north",), brokers=(BrokerEntry(identity="e1", endpoints=written),)
    )
    config = BrokerConfig(identity="e1", group="east", fallback_groups=("west",), group_config=(WEST, group))
    document = first_document(config)
    assert document.group_config == (WEST, group, NORTH)


def test_the_first_document_takes_the_ports_that_chance_gave():
    real = Endpoints(frontend="tcp://127.0.0.1:40001")
    document = first_document(BrokerConfig(identity="e1", frontend_port=0), real)
    assert document.group_config[0].name == ""
    assert document.group_config[0].brokers[0].endpoints == real


def test_no_first_document_without_an_identity_or_with_faults():
    with pytest.raises(ConfigError, match="identity"):
        first_document(BrokerConfig())
    with pytest.raises(ConfigError, match="e1 is listed more than once"):
        first_document(BrokerConfig(identity="e1", group_config=(EAST,)))


def test_a_client_gets_its_group_and_the_fallback_groups_in_order():
    part = client_config(DOCUMENT, "c1", ["a", "b"], "east", "e1", 3.0)
    assert part.group_config == (EAST, WEST, NORTH)
    assert (part.identity, part.services, part.preferred_broker) == ("c1", ("a", "b"), "e1")
    assert (part.heartbeat_interval, part.config_version) == (3.0, 7)
    assert part.checks == ()
    assert client_config(DOCUMENT, "c1", [], "nowhere", "", 1.0).group_config == ()


def test_a_helen_gets_what_she_watches():
    assert client_config(DOCUMENT, "h", ["helen.check"], "east", "", 1.0).checks == DOCUMENT.checks


def test_a_client_whose_part_did_not_change_need_not_be_notified():
    part = client_config(DOCUMENT, "c1", ["a"], "east", "e1", 1.0)
    elsewhere = msgspec.structs.replace(DOCUMENT, version=8, group_config=(NORTH, WEST, EAST), checks=())
    here = msgspec.structs.replace(
        DOCUMENT, version=8, group_config=(msgspec.structs.replace(EAST, brokers=()), WEST, NORTH)
    )
    assert differ_only_in_version(part, client_config(elsewhere, "c1", ["a"], "east", "e1", 1.0))
    assert not differ_only_in_version(part, client_config(here, "c1", ["a"], "east", "e1", 1.0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group_config": (NORTH, NORTH)}, "group_config: north is listed more than once"),
        ({"group_config": (GroupConfig(name=""),) * 2}, "group_config: the blank name is listed more than once"),
        ({"group_config": (WEST, GroupConfig(name="x", brokers=WEST.brokers))}, "brokers: w1 is listed more than once"),
        (
            {"group_config": (GroupConfig(name="x", fallback_groups=("y",)),)},
            "group_config.x.fallback_groups: there is no group y",
        ),
        (
            {"group_config": (GroupConfig(name="x", fallback_groups=("x",)),)},
            "group_config.x.fallback_groups: a group cannot be",
        ),
        ({"services": (ServicePolicy(name="s"),) * 2}, "services: s is listed more than once"),
        ({"silences": (Silence(name="s"),) * 2}, "silences: s is listed more than once"),
        ({"version": 1}, "parent: version 1 has none"),
    ],
)
def test_a_document_that_cannot_work_says_why(change, reason):
    (found,) = check_document(msgspec.structs.replace(DOCUMENT, **change))
    assert found.startswith(reason)


def test_a_good_document_has_no_faults():
    assert check_document(DOCUMENT) == []


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"parent": "AB" * 32}, {"network": ""}, {"services": [{"name": "all"}]}]
)
def test_a_document_with_a_wrong_key_does_not_parse(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse(json.dumps(change).encode(), "json", NetworkDocument)
