"""Foreign documents: every reason is reported with its place, and nothing is accepted that a format does not define."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.config import (
    FORMATS,
    MAX_DOCUMENT_BYTES,
    AgentConfig,
    BrokerConfig,
    HelenConfig,
    NetworkDocument,
    document_bytes,
    format_named,
    format_of_file,
    parse,
    parse_existing,
)
from scale0.config.tree import MAX_REASONS
from scale0.kernel.errors import ConfigError, Refusal


def reasons(data: bytes | str, form: str, schema: type = BrokerConfig) -> list[str]:
    raw = data.encode() if isinstance(data, str) else data
    with pytest.raises(ConfigError) as caught:
        parse(raw, form, schema)
    return caught.value.reasons


# Promise: CONF-5
def test_all_reasons_are_reported_in_the_order_of_their_lines():
    found = reasons(
        "frontend_prt = 5\nbackend_port = 99999\nbackend_port = 1\n\nstate = off\ncurve = yes\nmanagement = 3\n", "zpl"
    )
    assert found == [
        "line 1: frontend_prt: unknown key; the nearest known one is frontend_port",
        "line 2: backend_port: must be at most 65535, not 99999",
        "line 3: backend_port: is there twice",
        'line 5: state: must be one of active, disabled, joining, not "off"',
        'line 6: curve: must be true or false, not "yes"',
        'line 7: management: must be an object with keys, not "3"',
    ]


def test_the_same_faults_have_the_same_words_in_every_form():
    assert reasons('{\n"bind": "",\n"frontend_prt": 1}', "json") == reasons(
        "<config>\n<bind/>\n<frontend_prt>1</frontend_prt></config>", "xml"
    )
    assert reasons("\nbind =\nfrontend_prt = 1", "zpl") == [
        'line 2: bind: must be an address, a host name or *, not ""',
        "line 3: frontend_prt: unknown key; the nearest known one is frontend_port",
    ]


def test_a_fault_deep_inside_is_named_by_path_and_line():
    service = "a printable service name of at most 255 bytes, and not `all`"
    data = '{"group_config": [\n {"name": "a", "brokers": [\n  {"identity": "x y"},\n  {"services": ["all"]}]}]}'
    assert reasons(data, "json") == [
        'line 3: group_config[0].brokers[0].identity: must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not "x y"',
        f'line 4: group_config[0].brokers[1].services[0]: must be {service}, not "all"',
        "line 4: group_config[0].brokers[1]: identity is missing",
    ]


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("json", '{"a":' * 100_000),
        ("json", "[" * 100_000),
        ("json", '{"checks": [{"name": "a", "args": {"x": ' + "[" * 61 + "]" * 61 + "}}]}"),
        ("xml", "<config>" + "<a>" * 100_000),
        ("zpl", "\n".join("    " * level + "a" for level in range(200))),
        ("zpl", "checks\n    name = a\n    args\n        x = '" + "[" * 500 + "'"),
    ],
)
def test_depth_ends_in_a_reason_and_not_in_the_stack(form, data):
    assert any("nested deeper than 64" in reason for reason in reasons(data, form, NetworkDocument))


def test_a_document_may_be_as_deep_as_the_limit():
    for form, depth, data in [
        ("json", 60, '{"checks": [{"name": "a", "args": {"x": %s}}]}'),
        ("zpl", 60, "checks\n    name = a\n    args\n        x = '%s'"),
    ]:
        text = data % ("[" * depth + "]" * depth)
        assert parse(text.encode(), form, NetworkDocument).checks[0].args["x"] != []
    too_deep = "checks\n    name = a\n    args\n        x = '" + "[" * 61 + "]" * 61 + "'"
    assert "nested deeper than 64" in reasons(too_deep, "zpl", NetworkDocument)[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('{"state": "active",\n "state": "active"}', "line 2: state: is there twice"),
        ('{"management": {"port": 1,\n\n"port": 1}}', "line 3: management.port: is there twice"),
        ('{"frontend_port": NaN}', "line 1: frontend_port: must be a whole number, not a number out of range"),
        ('{"max_clock_skew": Infinity}', "line 1: max_clock_skew: must be a number, not a number out of range"),
        ('{"max_clock_skew": -Infinity}', "line 1: max_clock_skew: must be a number, not a number out of range"),
        ('{"max_clock_skew": 1e999}', "line 1: max_clock_skew: must be a number, not a number out of range"),
        (
            '{"max_clients": ' + "9" * 5000 + "}",
            "line 1: max_clients: must be a whole number, not a number out of range",
        ),
        ('{"frontend_port": 5.0}', "line 1: frontend_port: must be a whole number, not 5.0"),
        ('{"frontend_port": true}', "line 1: frontend_port: must be a whole number, not true"),
        ('{"frontend_port": "5"}', 'line 1: frontend_port: must be a whole number, not "5"'),
        ('{"max_clock_skew": 0}', "line 1: max_clock_skew: must be more than 0, not 0"),
        ('{"frontend_port": null}', "line 1: frontend_port: must be a whole number, not null"),
        ('{"store": "\\ud800"}', "line 1: store: must be sqlite, memory or postgresql://…"),
        ('{"peers": "tcp://a:1"}', 'line 1: peers: must be a list, not "tcp://a:1"'),
        (
            '{"peers": ["tcp://a:65536"]}',
            'line 1: peers[0]: must be an endpoint such as tcp://127.0.0.1:5702, not "tcp://a:65536"',
        ),
        ('{"services": "some"}', 'line 1: services: must be a list or all, not "some"'),
        ("[]", "line 1: document: must be an object with keys, not a list"),
        ("{\n}x", "line 2: not JSON: Extra data (column 2)"),
        ('{"a": 1,\n}', "line 2: not JSON: Expecting property name enclosed in double quotes (column 1)"),
        ("", "line 1: not JSON: Expecting value (column 1)"),
        ('{"group": "\n"}', "line 1: not JSON: Invalid control character at (column 12)"),
        ("\ufeff{}", "line 1: starts with a byte order mark; save the file as UTF-8 without it"),
    ],
)
def test_json_is_read_strictly(data, reason):
    assert reasons(data, "json") == [reason]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"\\udc00": 1}', "half of a surrogate pair"),
        ("[NaN]", "not a finite number in range"),
        ("9223372036854775808", "a number out of range"),
        ('{"b": 1, "b": 1}', "is there twice"),
    ],
)
def test_open_objects_are_read_as_strictly(value, reason):
    (found,) = reasons('{"checks": [{"name": "a", "args": {"x": ' + value + "}}]}", "json", NetworkDocument)
    assert found.endswith(reason)


@pytest.mark.parametrize("data", ["{}", '{"name": 1}', '{"name": ""}', '{"name": "a b"}', '"a"', "[]"])
def test_an_entry_has_a_name(data):
    assert len(reasons('{"silences": [' + data + "]}", "json", NetworkDocument)) == 1


@pytest.mark.parametrize("form", FORMATS)
def test_only_utf8_of_a_bounded_size_is_read(form):
    assert reasons(b"\n\n\xff", form) == ["line 3: not UTF-8"]
    assert reasons("{}".encode("utf-16"), form) == ["line 1: not UTF-8"]
    assert reasons(b" " * (MAX_DOCUMENT_BYTES + 1), form) == ["document: 4194305 bytes, more than 4194304"]


@pytest.mark.parametrize(
    "number", ["٣", "1_000", "+5", " 5", "5 ", "05", "0x10", "5.0", "1e3", "", "５", "9" * 30, "-1", "65536"]
)
def test_whole_numbers_are_ascii_digits_and_nothing_else(number):
    assert "frontend_port" in reasons(f"<config><frontend_port>{number}</frontend_port></config>", "xml")[0]


@pytest.mark.parametrize(
    "number", ["٣", "1_0", "+5", ".5", "5.", "nan", "inf", "Infinity", "1e999", "-1", "0", "0x1p3", "1e"]
)
def test_seconds_are_finite_decimal_numbers_above_zero(number):
    assert "max_clock_skew" in reasons(f"max_clock_skew = {number}", "zpl")[0]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("0", False)])
def test_booleans_have_four_spellings_in_text(text, value):
    assert parse(f"curve = {text}".encode(), "zpl", BrokerConfig).curve is value


@pytest.mark.parametrize("text", ["True", "TRUE", "yes", "on", "2", ""])
def test_booleans_have_no_other_spelling(text):
    assert "must be true or false" in reasons(f"curve = {text}", "zpl")[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><config/>', "line 1: a DTD or an entity is not allowed"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><config/>', "line 1: a DTD or an entity is not allowed"),
        ("<config>&b;</config>", "line 1: not XML: undefined entity"),
        ('<config>\n<bind a="1">x</bind></config>', "line 2: <bind> has attributes; write keys as elements"),
        ("<config>\n x <bind>y</bind></config>", "line 2: <config> has both text and elements"),
        ("<config><bind>y</bind>\n x</config>", "line 2: <config> has both text and elements"),
        ("<config>text</config>", "line 1: <config> contains text instead of elements"),
        ("\n<configuration/>", "line 2: the root must be <config>, not <configuration>"),
        ("<config/><config/>", "line 1: not XML: junk after document element"),
        ("<config>\n</confi>", "line 2: not XML: mismatched tag"),
        ("", "line 1: not XML: no element found"),
        ('<?xml version="1.0" encoding="latin-1"?><config/>', 'line 1: encoding "latin-1": only UTF-8 is supported'),
        ('<config xmlns="urn:x"/>', 'line 1: element "{urn:x}config": not a valid name of a key'),
        ("<config><bind>a</bind>\n<bind>b</bind></config>", "line 2: bind: is there twice"),
        ("<config><group><a>b</a></group></config>", "line 1: group: must be a value, not a section"),
    ],
)
def test_xml_is_elements_and_text_only(data, reason):
    assert reasons(data, "xml") == [reason]


def test_xml_text_may_come_in_pieces():
    inner = "a<!-- c -->&amp;<![CDATA[<b>]]>&#233;"
    data = f"<?xml version='1.0' encoding='utf-8'?><!-- c --><config><data_dir>{inner}</data_dir></config>"
    assert parse(data.encode(), "xml", BrokerConfig).data_dir == "a&<b>é"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("group = a\n    b = 1", "line 1: group: must be a value, not a section"),
        ("management = 1\n    port = 1", "line 1: management: has both a value and children"),
        ("management\n    port = 1\nmanagement\n    port = 2", "line 3: management: is there twice"),
        ("services = all\nservices = x", "line 1: services[0]: must be a printable service name"),
        ("group_config\n    name = a\n    name = b", "line 3: group_config[0].name: is there twice"),
    ],
)
def test_zpl_keys_keep_their_shape(data, reason):
    assert reasons(data, "zpl")[0].startswith(reason)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            "checks\n    name = a\n    args\n        x = 1\n        x = 2",
            "line 5: checks[0].args.x: is there twice; write a list as JSON, [1, 2]",
        ),
        (
            "checks\n    name = a\n    args\n        x = '{1'",
            "line 4: checks[0].args.x: starts like JSON but is invalid: not JSON",
        ),
        (
            'checks\n    name = a\n    args\n        x = \'{"a":1,"a":2}\'',
            "line 4: checks[0].args.x: a key of the JSON in it is there twice",
        ),
        ("checks = disk", 'line 1: checks[0]: must be an object with keys, not "disk"'),
    ],
)
def test_open_objects_in_text_are_read_strictly(data, reason):
    assert reasons(data, "zpl", NetworkDocument)[0].startswith(reason)


# Promise: CONF-5
def test_secrets_are_never_repeated_in_a_reason():
    found = reasons(
        '{"store": "mysql://root:hunter2@db", "admins": [{"auth_id": "a", "password_hash": "hunter2\\n"}]}', "json"
    )
    assert len(found) == 2
    assert "hunter2" not in "".join(found)


def test_a_flood_of_faults_ends_soon():
    data = "{" + ",".join(f'"{"k" * 5000}{number}": 1' for number in range(500)) + "}"
    found = reasons(data, "json")
    assert len(found) == MAX_REASONS + 1
    assert max(map(len, found)) < 300
    assert len(reasons("x y\n" * 1000, "zpl")) == MAX_REASONS


def test_one_helen_or_several():
    rest = '"certificate": "c", "private_key": "k", "server_ca": "a"'
    for text, found in [('"h1"', (("h1", 4166),)), ('["h1:99", "[::1]"]', (("h1", 99), ("[::1]", 4166)))]:
        agent = parse(f'{{"helen": {text}, {rest}}}'.encode(), "json", AgentConfig)
        assert agent.helen_addresses() == found
    assert "at least one" in reasons(f'{{"helen": [], {rest}}}', "json", AgentConfig)[0]


@pytest.mark.parametrize("command", ["\"check_disk -w '10 %'\"", '["check_disk", "-w", "10 %"]'])
def test_a_plugins_command_is_words_however_it_is_written(command):
    rest = '"helen": "h", "certificate": "c", "private_key": "k", "server_ca": "a"'
    data = f'{{{rest}, "plugins": [{{"name": "disk", "command": {command}}}]}}'
    assert parse(data.encode(), "json", AgentConfig).plugins[0].command == ("check_disk", "-w", "10 %")


def test_a_plugin_without_a_command_is_refused():
    rest = '"helen": "h", "certificate": "c", "private_key": "k", "server_ca": "a"'
    for command, reason in [('""', "a program"), ("[]", "a program"), ('"a \'b"', "not closed"), ('[""]', "a program")]:
        data = f'{{{rest}, "plugins": [{{"name": "disk", "command": {command}}}]}}'
        assert reason in reasons(data, "json", AgentConfig)[0]


@pytest.mark.parametrize(("broker", "endpoint"), [("b", "tcp://b:5701"), ("b:1", "tcp://b:1"), ("ipc://x", "ipc://x")])
def test_helen_finds_her_broker(broker, endpoint):
    data = f"identity = h\nbroker = {broker}\ncertificate = c\nprivate_key = k\nclient_ca = a\n"
    assert parse(data.encode(), "zpl", HelenConfig).broker_endpoint() == endpoint


def test_forms_are_named_in_any_case_and_by_ending():
    assert [format_named(name) for name in ("JSON", "xml", "ZPL", "zfl", "ZFL")] == ["json", "xml", "zpl", "zpl", "zpl"]
    assert [format_of_file(name) for name in ("a.json", "b/c.d.XML", "/x/y.zpl")] == ["json", "xml", "zpl"]


@pytest.mark.parametrize("name", ["", "yaml", "json ", "jſon", "ZPLX"])
def test_other_forms_are_refused_with_415(name):
    for choose in (format_named, format_of_file, lambda text: parse(b"{}", text, BrokerConfig)):
        with pytest.raises(Refusal) as caught:
            choose(name)
        assert caught.value.code == 415


# Promise: CONF-5
@given(
    st.sampled_from(FORMATS),
    st.binary(max_size=60) | st.text('{}[]":,\\u0d1<>/config&;#= \n', max_size=60).map(str.encode),
)
def test_no_bytes_do_anything_but_parse_or_be_refused(form, data):
    found = ["parsed"]
    try:
        parse(data, form, NetworkDocument)
    except ConfigError as error:
        found = error.reasons
    assert found
    assert all(reason.isprintable() for reason in found)


# Promise: CONF-5
@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        (
            NetworkDocument,
            '{"default_heartbeat_interval": 1e308}',
            "default_heartbeat_interval: must be at most 86400.0, not 1e+308",
        ),
        (NetworkDocument, '{"heartbeat_liveness": 1001}', "heartbeat_liveness: must be at most 1000, not 1001"),
        (
            NetworkDocument,
            '{"services": [{"name": "a", "timeout": 1e308}]}',
            "services[0].timeout: must be at most 31622400.0, not 1e+308",
        ),
        (
            NetworkDocument,
            '{"checks": [{"name": "a", "timeout": 86401}]}',
            "checks[0].timeout: must be at most 86400.0, not 86401",
        ),
        (
            NetworkDocument,
            '{"checks": [{"name": "a", "interval": 1e308}]}',
            "checks[0].interval: must be at most 31622400.0, not 1e+308",
        ),
        (
            BrokerConfig,
            '{"error_client_ban": 1e12}',
            "error_client_ban: must be at most 31622400.0, not 1000000000000.0",
        ),
        (
            BrokerConfig,
            '{"mdp_heartbeat_interval": 86401}',
            "mdp_heartbeat_interval: must be at most 86400.0, not 86401",
        ),
        (AgentConfig, '{"check_timeout": 1e9}', "check_timeout: must be at most 86400.0, not 1000000000.0"),
    ],
)
def test_a_time_that_is_too_long_is_refused_with_its_path_and_its_bound(schema, text, reason):
    assert f"line 1: {reason}" in reasons(text, "json", schema)


# Promise: CONF-5
def test_a_number_above_its_bound_is_lowered_in_a_document_that_exists_and_nothing_else_is_accepted():
    text = b"""{"default_heartbeat_interval": 1e308, "heartbeat_liveness": 99999999,
    "services": [{"name": "a", "timeout": 1e308}], "checks": [{"name": "b", "interval": 1e308, "timeout": 1e9}]}"""
    read = parse_existing(text, NetworkDocument)
    assert (read.default_heartbeat_interval, read.heartbeat_liveness) == (86_400.0, 1_000)
    assert read.services[0].timeout == 366 * 86_400.0
    assert (read.checks[0].interval, read.checks[0].timeout) == (366 * 86_400.0, 86_400.0)
    assert parse(document_bytes(read), "json", NetworkDocument) == read
    for wrong in (b'{"default_heartbeat_interval": 0}', b'{"default_heartbeat_interval": NaN}', b'{"other": 1}'):
        with pytest.raises(ConfigError):
            parse_existing(wrong, NetworkDocument)
