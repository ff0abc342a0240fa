"""The schemas keep PROTOCOL's keys and defaults, and the broker's file as a whole makes sense or says why not."""

from __future__ import annotations

import msgspec
import pytest

from scale0.config import (
    AdminConfig,
    BrokerConfig,
    Endpoints,
    GroupConfig,
    HttpConfig,
    PeerShare,
    check_broker,
    is_loopback,
    parse,
)
from scale0.kernel.limits import Limits

EXAMPLE = b"""\
identity = east-1
bind = 127.0.0.1
frontend_port = 5700
backend_port = 5701
peer_port = 5702
config_pub_port = 5703
config_sub_ports = tcp://127.0.0.1:5713
task_pub_port = 5704
state = active
peers = tcp://127.0.0.1:5712
default_heartbeat_interval = 1
services = all
group = east
fallback_groups = west
config_service = true
data_dir = var/east-1
group_config
    name = east
    brokers
        identity = east-1
        services = all
admins
    auth_id = root
    password_hash = '$argon2id$v=19$m=65536'
    role = admin
management
    enabled = false
    port = 5780
"""


def test_the_protocols_own_example_is_read():
    config = parse(EXAMPLE, "zpl", BrokerConfig)
    assert config.peers == ("tcp://127.0.0.1:5712",)
    assert config.group_config[0].brokers[0].services == "all"
    assert config.admins[0].role == "admin"
    assert check_broker(config) == []


def test_an_empty_file_is_a_joining_broker_on_loopback_with_the_default_ports():
    config = parse(b"", "zpl", BrokerConfig)
    assert config == BrokerConfig() == parse(b"{}", "json", BrokerConfig) == parse(b"<config/>", "xml", BrokerConfig)
    assert (config.frontend_port, config.backend_port, config.peer_port) == (5700, 5701, 5702)
    assert (config.config_pub_port, config.task_pub_port, config.management.port) == (5703, 5704, 5780)
    assert (config.bind, config.state, config.services, config.heartbeat_liveness) == ("127.0.0.1", "joining", "all", 3)
    assert check_broker(config) == []


def test_every_limit_is_a_key_of_the_brokers_file_with_the_same_default():
    assert set(Limits.__struct_fields__) <= set(BrokerConfig.__struct_fields__)
    assert BrokerConfig().limits() == Limits()
    for name, default in zip(Limits.__struct_fields__, Limits.__struct_defaults__, strict=True):
        changed = parse(f"{name} = {default * 2}".encode(), "zpl", BrokerConfig)
        assert changed.limits() == msgspec.structs.replace(Limits(), **{name: default * 2})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"frontend_port": 5701}, "frontend_port and backend_port are both 5701"),
        ({"management": HttpConfig(enabled=True, port=5700)}, "frontend_port and management.port are both 5700"),
        ({"bind": "192.0.2.1", "curve": False}, "bind: 192.0.2.1 is not loopback: set curve = true (or --curve)"),
        ({"bind": "*", "curve": True, "config_service": True}, "bind: nobody can connect to *: set advertise"),
        ({"group": "a", "fallback_groups": ("a",)}, "fallback_groups: a is the broker's own group"),
        ({"fallback_groups": ("a", "a")}, "fallback_groups: a is listed more than once"),
        ({"group_config": (GroupConfig(name="a"),) * 2}, "group_config: a is listed more than once"),
        ({"peers": ("tcp://a:1",) * 2}, "peers: tcp://a:1 is listed more than once"),
        (
            {"peer_shares": (PeerShare(peer="tcp://a:1", heartbeat_share="off"),)},
            "peer_shares: tcp://a:1 is not one of peers",
        ),
        ({"request_timeout": 1e9}, "request_timeout: longer than max_request_timeout"),
    ],
)
def test_a_file_that_cannot_work_says_why(change, reason):
    (found,) = check_broker(BrokerConfig(**change))
    assert found.startswith(reason)


def test_a_password_in_place_of_its_hash_is_refused_and_not_repeated():
    (found,) = check_broker(BrokerConfig(admins=(AdminConfig(auth_id="ada", password_hash="hunter2"),)))
    assert "scale0 password" in found
    assert "hunter2" not in found


def test_two_ports_left_to_chance_do_not_collide():
    assert check_broker(BrokerConfig(frontend_port=0, backend_port=0)) == []


@pytest.mark.parametrize("change", [{"curve": True}, {"insecure": True}])
def test_an_open_address_needs_curve_or_trust(change):
    assert check_broker(BrokerConfig(bind="192.0.2.1", **change)) == []


def test_loopback_is_what_nobody_else_reaches():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5
    assert [is_loopback(host) for host in ("0.0.0.0", "*", "::", "10.0.0.1", "localhost.example")] == [False] * 5


def test_a_peer_may_be_shared_with_differently():
    config = BrokerConfig(
        peers=("tcp://a:1", "tcp://b:1"), peer_shares=(PeerShare(peer="tcp://a:1", heartbeat_share="off"),)
    )
    assert [config.share_with(peer) for peer in config.peers] == ["off", "push"]


def test_endpoints_follow_bind_and_advertise():
    assert BrokerConfig(bind="::1").endpoints().peer == "tcp://[::1]:5702"
    assert BrokerConfig(bind="*", advertise="east.example").endpoints().frontend == "tcp://east.example:5700"
    assert BrokerConfig(bind="0.0.0.0").endpoints() == Endpoints()
    assert BrokerConfig(frontend_port=0).endpoints().frontend == ""
