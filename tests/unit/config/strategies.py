"""Valid values of every configuration schema, for hypothesis."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from scale0 import config
from scale0.config.value_types import MAX_CHECK_SECONDS, MAX_SECONDS
from scale0.kernel.limits import MAX_HEARTBEAT_INTERVAL, MAX_LIVENESS, Limits


def _tuples(entries: st.SearchStrategy[Any], most: int = 2, **more: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(entries, max_size=most, **more).map(tuple)


LETTERS = "abcXYZ019"
identities = st.text(LETTERS + "._:-", min_size=1, max_size=12)
blank_or_identity = st.just("") | identities
printable = st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])
lines = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20)
some_lines = lines.filter(bool)
services = st.text(printable, min_size=1, max_size=12).filter(lambda text: text != "all" and text.isprintable())
service_lists = _tuples(services, 3)
services_or_all = st.just("all") | service_lists
endpoints = st.builds(
    "tcp://{}:{}".format, st.sampled_from(["127.0.0.1", "east.example", "[::1]"]), st.integers(1, 65535)
)
blank_or_endpoint = st.just("") | endpoints
seconds = st.floats(min_value=0, max_value=MAX_SECONDS, exclude_min=True)
heartbeats = st.floats(min_value=0, max_value=MAX_HEARTBEAT_INTERVAL, exclude_min=True)
check_seconds = st.floats(min_value=0, max_value=MAX_CHECK_SECONDS, exclude_min=True)
liveness = st.integers(1, MAX_LIVENESS)
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


open_objects = st.dictionaries(_keys, json_values, max_size=3)
entry_names = names.filter(lambda text: "/" not in text)
blank_or_entry_name = st.just("") | entry_names
label_maps = st.dictionaries(st.text("abc_XYZ", min_size=1, max_size=5), lines, max_size=2)
glob_lists = _tuples(names | st.sampled_from(["web-*", "[ab]?", "*"]))
ranges = (
    st.integers(0, 10**18) | st.floats(0, 1e18) | st.sampled_from(["10", "10:", "~:10", "-5:20.5", "@10:20", "-1:"])
)
limits = st.dictionaries(st.sampled_from(["warn", "crit"]), ranges, min_size=1)
thresholds = st.dictionaries(_keys.filter(bool), limits, max_size=2)
moments = st.floats(0, 253_402_300_800)
percents = st.none() | st.floats(0, 100)
flappings = st.builds(
    config.Flapping,
    formula=st.sampled_from(["icinga", "nagios", "sensu", "off"]),
    start=st.none() | st.floats(0.01, 100),
    end=percents,
    suppress=st.booleans(),
)
checks = st.builds(
    config.CheckDefinition,
    name=entry_names,
    check=blank_or_entry_name,
    args=open_objects,
    interval=st.floats(0.1, 1e6),
    timeout=check_seconds,
    agents=glob_lists,
    labels=label_maps,
    thresholds=thresholds,
    max_attempts=st.integers(1, 1000),
    flapping=flappings,
    depends_on=_tuples(entry_names | st.builds("{}/{}".format, identities, entry_names)),
    handlers=_tuples(entry_names),
    enabled=st.booleans(),
)
handlers = st.builds(
    config.NotificationHandler,
    name=entry_names,
    type=st.sampled_from(["webhook", "command", "email", "task"]),
    url=st.sampled_from(["", "https://h.example:8443/x?a=b&c='d'#e", "http://[::1]/"]),
    headers=st.dictionaries(st.sampled_from(["X-Key", "Authorization"]), lines, max_size=2),
    command=blank_or_identity,
    to=_tuples(st.sampled_from(["a@b.example", "a.b+c@d"])),
    method=st.just("") | services,
    params=open_objects,
    check_again=st.booleans(),
    states=_tuples(st.sampled_from(["ok", "warning", "critical", "unknown"]), 4),
    limit=counts,
    period=seconds,
    max_attempts=st.integers(1, 1000),
    backoff=seconds,
    timeout=seconds,
)
_reach = {"agents": glob_lists, "checks": glob_lists, "labels": label_maps, "reason": lines, "author": lines}
downtimes = st.builds(config.Downtime, name=entry_names, starts=moments, ends=moments, **_reach)
silences = st.builds(config.Silence, name=entry_names, ends=moments, **_reach)


def _lists(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return _tuples(entries, unique_by=lambda entry: str(entry.name))


watched = {
    "checks": _lists(checks),
    "handlers": _lists(handlers),
    "downtimes": _lists(downtimes),
    "silences": _lists(silences),
}
"""What is watched, as keys of a document."""

endpoint_sets = st.builds(
    config.Endpoints, **dict.fromkeys(("frontend", "backend", "config_pub", "task_pub", "peer"), blank_or_endpoint)
)
broker_entries = st.builds(config.BrokerEntry, identity=identities, services=services_or_all, endpoints=endpoint_sets)
groups = st.builds(
    config.GroupConfig,
    name=blank_or_identity,
    fallback_groups=_tuples(identities),
    brokers=_tuples(broker_entries),
)
group_lists = _tuples(groups)
policies = st.builds(
    config.ServicePolicy,
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
} | {"mdp_heartbeat_interval": heartbeats}
brokers = st.builds(
    config.BrokerConfig,
    identity=blank_or_identity,
    network=identities,
    bind=st.sampled_from(["127.0.0.1", "*", "::1", "localhost"]),
    advertise=st.sampled_from(["", "east.example"]),
    frontend_port=ports,
    backend_port=ports,
    peer_port=ports,
    config_pub_port=ports,
    task_pub_port=ports,
    config_sub_ports=_tuples(endpoints),
    peers=_tuples(endpoints),
    heartbeat_share=st.sampled_from(["push", "pull", "off"]),
    peer_shares=_tuples(st.builds(config.PeerShare, peer=endpoints, heartbeat_share=st.just("pull"))),
    state=st.sampled_from(["joining", "active", "disabled"]),
    services=services_or_all,
    group=blank_or_identity,
    fallback_groups=_tuples(identities),
    group_config=group_lists,
    config_service=st.booleans(),
    default_heartbeat_interval=heartbeats,
    heartbeat_liveness=liveness,
    data_dir=some_lines,
    store=st.sampled_from(["sqlite", "memory", "postgresql://u:p@h/db?a=b#c"]),
    curve=st.booleans(),
    insecure=st.booleans(),
    management=st.builds(
        config.HttpConfig,
        enabled=st.booleans(),
        port=ports,
        hosts=_tuples(st.sampled_from(["127.0.0.1", "console.example.com"])),
        exports=_tuples(
            st.builds(config.ExportConfig, kind=st.sampled_from(["otlp", "graphite", "statsd"]), address=some_lines)
        ),
    ),
    admins=_tuples(
        st.builds(
            config.AdminConfig, auth_id=identities, password_hash=some_lines, role=st.sampled_from(["admin", "viewer"])
        )
    ),
    **_LIMIT_VALUES,
)
documents = st.builds(
    config.NetworkDocument,
    network=identities,
    version=counts,
    default_heartbeat_interval=heartbeats,
    heartbeat_liveness=liveness,
    group_config=group_lists,
    services=_tuples(policies),
    **watched,
    parent=st.sampled_from(["", "0123456789abcdef" * 4]),
)


def _without_null(value: Any) -> Any:
    """A change to nothing and to `null` look the same, so documents to compare hold no `null`."""
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items()}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else 0 if value is None else value


def _sound_check(check: config.CheckDefinition) -> config.CheckDefinition:
    flapping = msgspec.structs.replace(check.flapping, end=None)
    return msgspec.structs.replace(check, args=_without_null(check.args), depends_on=(), handlers=(), flapping=flapping)


def _sound_handler(handler: config.NotificationHandler) -> config.NotificationHandler:
    given = {"url": "http://h/", "command": "page", "to": ("a@b",), "method": "heal"}
    return msgspec.structs.replace(handler, params=_without_null(handler.params), **given)


def _sound(document: config.NetworkDocument) -> config.NetworkDocument:
    groups = {group.name: group for group in document.group_config}
    plain = (msgspec.structs.replace(group, fallback_groups=(), brokers=group.brokers[:1]) for group in groups.values())
    named = {
        "checks": tuple(_sound_check(check) for check in document.checks),
        "handlers": tuple(_sound_handler(handler) for handler in document.handlers),
        "downtimes": tuple(msgspec.structs.replace(one, starts=1.0, ends=2.0) for one in document.downtimes),
    }
    policies = {policy.name: policy for policy in document.services}
    return msgspec.structs.replace(
        document, version=2, parent="", group_config=tuple(plain)[:1], services=tuple(policies.values()), **named
    )


sound_documents = documents.map(_sound).filter(lambda document: not config.check_document(document))
clients = st.builds(
    config.ClientConfig,
    identity=blank_or_identity,
    services=service_lists,
    group_config=group_lists,
    preferred_broker=blank_or_identity,
    heartbeat_interval=heartbeats,
    config_version=st.integers(0, 2**63 - 1),
    **watched,
)
helens = st.builds(
    config.HelenConfig,
    identity=identities,
    broker=st.sampled_from(["tcp://127.0.0.1:5701", "east.example", "east.example:5801"]),
    bind=st.just("*"),
    helen_port=ports,
    certificate=some_lines,
    private_key=some_lines,
    client_ca=some_lines,
    data_dir=some_lines,
    advertise=st.sampled_from(["", "helen.example"]),
    max_agents=counts,
    heartbeat_seconds=st.integers(1, 3_600),
    min_equus_version=blank_or_identity,
    commands=_tuples(st.builds(config.NoticeCommand, name=identities, command=some_lines.map(lambda word: (word,)))),
    smtp=st.builds(
        config.MailServer,
        host=st.sampled_from(["", "mail.example"]),
        port=ports,
        sender=lines,
        user=lines,
        password_file=lines,
        tls=st.sampled_from(["starttls", "tls", "off"]),
    ),
)
agents = st.builds(
    config.AgentConfig,
    helen=st.lists(st.sampled_from(["h1", "h2:4166", "[::1]:1"]), min_size=1, max_size=3).map(tuple),
    certificate=some_lines,
    private_key=some_lines,
    server_ca=some_lines,
    checks_dir=some_lines,
    plugins=_tuples(
        st.builds(
            config.Plugin,
            name=identities,
            command=st.builds(lambda head, tail: (head, *tail), some_lines, st.lists(lines, max_size=2)),
        )
    ),
    check_timeout=check_seconds,
    data_dir=some_lines,
    labels=st.dictionaries(st.text("abc_XYZ", min_size=1, max_size=5), lines, max_size=3),
    spool_bytes=counts,
    spool_age=seconds,
    max_checks=st.integers(8, 1_000),
    plugin_user=blank_or_identity,
)
anything = st.one_of(brokers, documents, clients, helens, agents)
