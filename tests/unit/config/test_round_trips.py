"""What is rendered is read back equal, in every form; what a form cannot carry is refused, never bent."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scale0.config import (
    FORMATS,
    AgentConfig,
    BrokerConfig,
    CheckDefinition,
    ClientConfig,
    NetworkDocument,
    Plugin,
    parse,
    render,
    xml_format,
    zpl_format,
)
from scale0.config.tree import Item
from scale0.kernel.errors import ConfigError
from tests.unit.config import strategies
from tests.unit.config.zconfig import czmq_reader, tree_of

pytestmark = pytest.mark.slow

SCHEMA_VALUES = {
    "broker": strategies.brokers,
    "network": strategies.documents,
    "client": strategies.clients,
    "helen": strategies.helens,
    "agent": strategies.agents,
}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    return [text for inner in value for text in _texts(inner)] if isinstance(value, list | tuple) else []


# Promise: CONF-4
@pytest.mark.parametrize("name", SCHEMA_VALUES)
def test_json_carries_every_document(name):
    @given(SCHEMA_VALUES[name])
    def check(document):
        assert parse(render(document, "json"), "json", type(document)) == document

    check()


def rendered(document: msgspec.Struct, form: str) -> tuple[bytes, list[str]]:
    """The bytes, or the reasons why there are none."""
    try:
        return render(document, form), []
    except ConfigError as error:
        return b"", error.reasons


# Promise: CONF-4
@pytest.mark.parametrize("name", SCHEMA_VALUES)
def test_xml_carries_every_document_without_noncharacters(name):
    @given(SCHEMA_VALUES[name])
    def check(document):
        data, refused = rendered(document, "xml")
        assert all("XML cannot contain U+FFF" in reason for reason in refused)
        assert refused or parse(data, "xml", type(document)) == document

    check()


# Promise: CONF-4
@pytest.mark.parametrize("name", SCHEMA_VALUES)
def test_zpl_carries_every_document_without_both_quotes_and_czmq_reads_the_same_tree(name):
    czmq = czmq_reader()

    @given(SCHEMA_VALUES[name])
    def check(document):
        data, refused = rendered(document, "zpl")
        if refused:
            assert any("'" in text and '"' in text for text in _texts(msgspec.to_builtins(document)))
            assert all("both kinds of quotes" in reason for reason in refused)
        else:
            assert parse(data, "zpl", type(document)) == document
            assert czmq(data) == tree_of(zpl_format.read(data.decode()))

    check()


@given(strategies.open_objects)
def test_open_objects_pass_through_every_form(args):
    document = NetworkDocument(checks=(CheckDefinition(name="c", args=args),))
    for form in FORMATS:
        assert parse(render(document, form), form, NetworkDocument) == document


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, "1", "true", None, [], {}, "", " ", "\n\t\r", "\0", 'it\'s "so"', [[1]], {"a": {"b": []}}]
)
@pytest.mark.parametrize("form", FORMATS)
def test_an_open_value_keeps_its_type(form, value):
    document = NetworkDocument(checks=(CheckDefinition(name="c", args={"value": value}),))
    (check,) = parse(render(document, form), form, NetworkDocument).checks
    assert check.args["value"] == value
    assert type(check.args["value"]) is type(value)


def test_a_list_of_one_and_an_empty_list_are_lists_in_every_form():
    for services in ((), ("a",), ("a", "b"), "all"):
        document = BrokerConfig(services=services)
        for form in FORMATS:
            assert parse(render(document, form), form, BrokerConfig).services == services


@pytest.mark.parametrize(
    ("value", "form", "reason"),
    [
        ('it\'s "so"', "zpl", "data_dir: ZPL cannot contain a value with both kinds of quotes"),
        ("one\ntwo", "zpl", "data_dir: ZPL cannot contain a value of several lines"),
        ("bell\x07", "zpl", "data_dir: ZPL cannot contain control characters"),
        ("x" * 1100, "zpl", "data_dir: longer than a line of ZPL may be, 1024 bytes"),
        ("bell\x07", "xml", "data_dir: XML cannot contain U+0007"),
        ("\ufffe", "xml", "data_dir: XML cannot contain U+FFFE"),
    ],
)
def test_render_says_why_a_form_cannot_carry_a_value(value, form, reason):
    with pytest.raises(ConfigError) as caught:
        render(BrokerConfig(data_dir=value), form)
    assert caught.value.reasons == [reason]


def test_a_place_inside_a_section_is_named_by_its_path():
    agent = AgentConfig(
        helen=("h",), certificate="c", private_key="k", server_ca="a", plugins=(Plugin(name="p", command=("x", "'\"")),)
    )
    with pytest.raises(ConfigError) as caught:
        render(agent, "zpl")
    assert caught.value.reasons == ["plugins.command: ZPL cannot contain a value with both kinds of quotes"]


def test_the_old_spelling_of_preferred_broker_is_read_in_every_form():
    for form, data in {
        "json": b'{"prefered_broker": "b1"}',
        "xml": b"<config><prefered_broker>b1</prefered_broker></config>",
        "zpl": b"prefered_broker = b1\n",
    }.items():
        client = parse(data, form, ClientConfig)
        assert client.preferred_broker == "b1"
        assert b"preferred_broker" in render(client, form)
    with pytest.raises(ConfigError, match="there twice, by its old and its new spelling"):
        parse(b'{"prefered_broker": "b1", "preferred_broker": "b1"}', "json", ClientConfig)


_xml_texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\ufffe\uffff", exclude_categories=["Cs"]), max_size=20
)


@given(_xml_texts.filter(lambda text: not any(char < " " and char not in "\t\n\r" for char in text)))
@example("a\rb\r\nc\t]]>&amp;")
def test_xml_text_is_read_back_exactly(text):
    root = Item("config", items=(Item("a", text),))
    (item,) = xml_format.read(xml_format.write(root)).items
    assert item.text == text
