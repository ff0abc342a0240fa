"""Made-up configuration of every schema, for hypothesis.

Lives here: strategies that make valid values only. Never here: a test.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from scale0.base.limits import Limits
from scale0.config import (
    Admin,
    AgentConfig,
    BrokerConfig,
    BrokerEntry,
    ClientConfig,
    Endpoints,
    GroupConfig,
    HelenConfig,
    Management,
    NetworkDocument,
    PeerShare,
    Plugin,
    ServicePolicy,
    check_document,
)

LETTERS = "abcXYZ019"
identities = st.text(LETTERS + "._:-", min_size=1, max_size=12)
blank_or_identity = st.just("") | identities
printable = st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])
lines = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20)
some_lines = lines.filter(bool)
services = st.text(printable, min_size=1, max_size=12).filter(lambda text: text != "all" and text.isprintable())
service_lists = st.lists(services, max_size=3).map(tuple)
services_or_all = st.just("all") | service_lists
endpoints = st.builds(
    "tcp://{}:{}".format, st.sampled_from(["127.0.0.1", "east.example", "[::1]"]), st.integers(1, 65535)
)
blank_or_endpoint = st.just("") | endpoints
seconds = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
counts = st.integers(1, 2**63 - 1)
ports = st.integers(0, 65535)

_keys = st.text(LETTERS + "_-./ é'", max_size=6)
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(
        ["60", "true", "null", "{", "[1]", '"', "'", 'it\'s "so"', " x ", "#", "\ufffe", "\x7f", "1e5", "-"]
    )
)
json_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=8
)
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8).filter(
    str.isprintable
)


def _named(rest: dict[str, Any], name: str) -> dict[str, Any]:
    return {**rest, "name": name}


named = st.builds(_named, st.dictionaries(_keys, json_values, max_size=3), names)
named_lists = st.lists(named, max_size=2, unique_by=lambda entry: str(entry["name"])).map(tuple)

endpoint_sets = st.builds(
    Endpoints, **dict.fromkeys(("frontend", "backend", "config_pub", "task_pub", "peer"), blank_or_endpoint)
)
broker_entries = st.builds(BrokerEntry, identity=identities, services=services_or_all, endpoints=endpoint_sets)
groups = st.builds(
    GroupConfig,
    name=blank_or_identity,
    fallback_groups=st.lists(identities, max_size=2).map(tuple),
    brokers=st.lists(broker_entries, max_size=2).map(tuple),
)
group_lists = st.lists(groups, max_size=2).map(tuple)
policies = st.builds(
    ServicePolicy,
    name=services,
    request_queue_limit=st.none() | counts,
    timeout=st.none() | seconds,
    retry=st.none() | st.booleans(),
    max_attempts=st.none() | counts,
    concurrency=st.none() | counts,
)
_LIMIT_VALUES = {
    name: (st.integers(1, 500) if isinstance(default, int) else seconds)
    for name, default in zip(Limits.__struct_fields__, Limits.__struct_defaults__, strict=True)
}
brokers = st.builds(
    BrokerConfig,
    identity=blank_or_identity,
    network=identities,
    bind=st.sampled_from(["127.0.0.1", "*", "::1", "localhost"]),
    advertise=st.sampled_from(["", "east.example"]),
    frontend_port=ports,
    backend_port=ports,
    peer_port=ports,
    config_pub_port=ports,
    task_pub_port=ports,
    config_sub_ports=st.lists(endpoints, max_size=2).map(tuple),
    peers=st.lists(endpoints, max_size=2).map(tuple),
    heartbeat_share=st.sampled_from(["push", "pull", "off"]),
    peer_shares=st.lists(st.builds(PeerShare, peer=endpoints, heartbeat_share=st.just("pull")), max_size=2).map(tuple),
    state=st.sampled_from(["joining", "active", "disabled"]),
    services=services_or_all,
    group=blank_or_identity,
    fallback_groups=st.lists(identities, max_size=2).map(tuple),
    group_config=group_lists,
    config_service=st.booleans(),
    default_heartbeat_interval=seconds,
    heartbeat_liveness=counts,
    data_dir=some_lines,
    store=st.sampled_from(["sqlite", "memory", "postgresql://u:p@h/db?a=b#c"]),
    curve=st.booleans(),
    insecure=st.booleans(),
    management=st.builds(Management, enabled=st.booleans(), port=ports),
    admins=st.lists(
        st.builds(Admin, auth_id=identities, password_hash=some_lines, role=st.sampled_from(["admin", "viewer"])),
        max_size=2,
    ).map(tuple),
    **_LIMIT_VALUES,
)
documents = st.builds(
    NetworkDocument,
    network=identities,
    version=counts,
    default_heartbeat_interval=seconds,
    heartbeat_liveness=counts,
    group_config=group_lists,
    services=st.lists(policies, max_size=2).map(tuple),
    checks=named_lists,
    handlers=named_lists,
    downtimes=named_lists,
    silences=named_lists,
    parent=st.sampled_from(["", "0123456789abcdef" * 4]),
)


def _without_null(value: Any) -> Any:
    """A change to nothing and to `null` look the same, so documents to compare hold no `null`."""
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items()}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else 0 if value is None else value


def _sound(document: NetworkDocument) -> NetworkDocument:
    groups = {group.name: group for group in document.group_config}
    plain = (msgspec.structs.replace(group, fallback_groups=(), brokers=group.brokers[:1]) for group in groups.values())
    named = {
        key: tuple(map(_without_null, getattr(document, key)))
        for key in ("checks", "handlers", "downtimes", "silences")
    }
    policies = {policy.name: policy for policy in document.services}
    return msgspec.structs.replace(
        document, version=2, parent="", group_config=tuple(plain)[:1], services=tuple(policies.values()), **named
    )


sound_documents = documents.map(_sound).filter(lambda document: not check_document(document))
clients = st.builds(
    ClientConfig,
    identity=blank_or_identity,
    services=service_lists,
    group_config=group_lists,
    preferred_broker=blank_or_identity,
    heartbeat_interval=seconds,
    config_version=st.integers(0, 2**63 - 1),
    checks=named_lists,
    handlers=named_lists,
    downtimes=named_lists,
    silences=named_lists,
)
helens = st.builds(
    HelenConfig,
    identity=identities,
    broker=st.sampled_from(["tcp://127.0.0.1:5701", "east.example", "east.example:5801"]),
    bind=st.just("*"),
    helen_port=ports,
    certificate=some_lines,
    private_key=some_lines,
    client_ca=some_lines,
    data_dir=some_lines,
)
agents = st.builds(
    AgentConfig,
    helen=st.lists(st.sampled_from(["h1", "h2:4166", "[::1]:1"]), min_size=1, max_size=3).map(tuple),
    certificate=some_lines,
    private_key=some_lines,
    server_ca=some_lines,
    checks_dir=some_lines,
    plugins=st.lists(
        st.builds(
            Plugin,
            name=identities,
            command=st.builds(lambda head, tail: (head, *tail), some_lines, st.lists(lines, max_size=2)),
        ),
        max_size=2,
    ).map(tuple),
    check_timeout=seconds,
    data_dir=some_lines,
    labels=st.dictionaries(st.text("abc_XYZ", min_size=1, max_size=5), lines, max_size=3),
)
anything = st.one_of(brokers, documents, clients, helens, agents)
