"""Key paths: changes are listed by path, and a patch by path gives a checked document or nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.config import (
    BrokerEntry,
    CheckDefinition,
    GroupConfig,
    NetworkDocument,
    ServicePolicy,
    Silence,
    changed_paths,
    document_bytes,
    patch,
)
from scale0.kernel.errors import ConfigError
from tests.unit.config import strategies

E1 = BrokerEntry(identity="e1.example", services=("a",))
EMPTY: dict[str, Any] = {"agents": [], "checks": []}
DOCUMENT = NetworkDocument(
    version=3,
    group_config=(GroupConfig(name="east", brokers=(E1,)), GroupConfig(name="west")),
    services=(ServicePolicy(name="thumbs"), ServicePolicy(name="thumbs.make", timeout=5.0)),
    checks=(CheckDefinition(name="disk", args={"path": "/"}),),
    silences=(Silence(name="s1", ends=5.0),),
    parent="ab" * 32,
)


def reasons(changes: dict[str, Any], remove: list[str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        patch(DOCUMENT, changes, remove or [])
    return caught.value.reasons


def test_a_value_is_set_by_its_path():
    new = patch(
        DOCUMENT,
        {
            "default_heartbeat_interval": 2,
            "group_config.east.fallback_groups": ["west"],
            "group_config.east.brokers.e1.example.services": "all",
            "services.thumbs.retry": True,
            "services.thumbs.make.timeout": 9,
            "checks.disk.args.path": "/var",
            "checks.disk.labels.site": "x",
        },
    )
    assert new.default_heartbeat_interval == 2.0
    assert new.group_config[0].fallback_groups == ("west",)
    assert new.group_config[0].brokers[0].services == "all"
    assert new.services == (ServicePolicy(name="thumbs", retry=True), ServicePolicy(name="thumbs.make", timeout=9.0))
    assert new.checks[0] == CheckDefinition(name="disk", args={"path": "/var"}, labels={"site": "x"})
    assert (new.version, new.parent) == (DOCUMENT.version, DOCUMENT.parent)


def test_brackets_hold_a_name_as_it_is():
    new = patch(DOCUMENT, {"services[thumbs.make].timeout": 1, "services[a]]b]": {}, "services[a]]b].retry": True})
    assert new.services[1].timeout == 1.0
    assert new.services[2] == ServicePolicy(name="a]b", retry=True)


def test_an_entry_is_added_replaced_and_removed_by_its_name():
    new = patch(
        DOCUMENT, {"silences.s2": {"ends": 9}, "silences.s1": {"name": "s1"}, "group_config.west.brokers.w1": {}}
    )
    assert new.silences == (Silence(name="s1"), Silence(name="s2", ends=9.0))
    assert new.group_config[1].brokers == (BrokerEntry(identity="w1"),)
    gone = patch(DOCUMENT, {}, ["silences.s1", "checks.disk.args", "services[thumbs.make]"])
    assert (gone.silences, gone.checks, gone.services) == (
        (),
        (CheckDefinition(name="disk"),),
        (ServicePolicy(name="thumbs"),),
    )


def test_what_is_removed_may_be_set_again():
    assert patch(DOCUMENT, {"silences.s1": {"ends": 1}}, ["silences.s1"]).silences == (Silence(name="s1", ends=1.0),)


# Promise: CONF-1
@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("", 1, '"": not a key path'),
        (".", 1, '".": not a key path'),
        ("a.", 1, '"a.": not a key path'),
        ("a..b", 1, '"a..b": not a key path'),
        ("a[b", 1, '"a[b": not a key path'),
        ("a[b]c", 1, '"a[b]c": not a key path'),
        ("x" * 5000, 1, "path of 5000 characters, more than 4096"),
        ("version", 9, "version: made by the broker, not set"),
        ("parent", "", "parent: made by the broker, not set"),
        ("netwrok", "x", "netwrok: unknown key; the nearest known one is network"),
        ("network", "x y", "network: must be 1 to 128"),
        ("network.x", 1, 'network.x: "x" is inside a plain value'),
        ("services.nobody.timeout", 1, 'services.nobody.timeout: there is no entry "nobody"'),
        ("services.s", 1, "services.s: an entry of this list is an object"),
        ("services.s", {"name": "t"}, 'services.s: the entry has the name "t"'),
        ("services.thumbs.timeot", 1, "services[0].timeot: unknown key; the nearest known one is timeout"),
        (
            "group_config.east.fallback_groups",
            ["nowhere"],
            "group_config.east.fallback_groups: there is no group nowhere",
        ),
        ("group_config.west.brokers", [{"identity": "e1.example"}], "brokers: e1.example is listed more than once"),
        ("checks.disk.args.x", float("nan"), "checks[0].args.x: not a finite number in range"),
        ("checks.disk.args.x", {1}, 'checks[0].args.x: "set" is nothing that JSON has'),
    ],
)
def test_a_bad_patch_changes_nothing_and_says_why(path, value, reason):
    before = document_bytes(DOCUMENT)
    (found,) = reasons({path: value})
    assert found.startswith(reason)
    assert document_bytes(DOCUMENT) == before


@pytest.mark.parametrize("path", ["silences.s9", "checks.disk.nothing", "services.a.b", "nothing"])
def test_only_what_is_there_can_be_removed(path):
    assert "there is no" in reasons({}, [path])[0]


def test_all_reasons_of_a_patch_are_reported():
    assert len(reasons({"version": 1, "services.s": 1}, ["silences.s9"])) == 3


def test_changes_are_listed_by_path_with_before_and_after():
    new = patch(
        DOCUMENT,
        {"services.thumbs.retry": True, "group_config.east.brokers.e1.example.services": "all", "silences[s.2]": {}},
        ["silences.s1"],
    )
    assert changed_paths(DOCUMENT, new) == [
        ("group_config.east.brokers[e1.example].services", ["a"], "all"),
        ("services.thumbs.retry", None, True),
        ("silences.s1", msgspec.to_builtins(Silence(name="s1", ends=5.0)) | EMPTY, None),
        ("silences[s.2]", None, msgspec.to_builtins(Silence(name="s.2")) | EMPTY),
    ]
    assert changed_paths(new, new) == []


def test_another_order_is_a_change_and_so_is_another_type_of_number():
    east, west = DOCUMENT.group_config
    (change,) = changed_paths(DOCUMENT, msgspec.structs.replace(DOCUMENT, group_config=(west, east)))
    assert change[0] == "group_config"
    one = NetworkDocument(checks=(CheckDefinition(name="a", args={"x": [1]}),))
    other = NetworkDocument(checks=(CheckDefinition(name="a", args={"x": [True]}),))
    assert changed_paths(one, other) == [("checks.a.args.x", [1], [True])]


def _in_order_of_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order_of_names(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        ordered = sorted(value, key=lambda entry: str(entry.get("name", entry.get("identity"))))
        return [_in_order_of_names(entry) for entry in ordered]
    return value


@given(strategies.sound_documents, strategies.sound_documents, st.booleans())
def test_the_changes_between_two_documents_are_a_patch_from_one_to_the_other(old, new, close):
    if close:
        new = msgspec.structs.replace(old, checks=new.checks, services=(*old.services[:1], ServicePolicy(name="new")))
    changes = changed_paths(old, new)
    assert bool(changes) == (document_bytes(old) != document_bytes(new))
    out = patch(
        old,
        {path: after for path, _before, after in changes if after is not None},
        [path for path, _before, after in changes if after is None],
    )
    assert _in_order_of_names(json.loads(document_bytes(out))) == _in_order_of_names(json.loads(document_bytes(new)))
