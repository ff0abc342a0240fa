"""NEEDBROKER: is it really gone, and who else serves that? (PROTOCOL 2.1)

Promise: NEGO-4
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.unit.broker.network import Network, Node, place_of

FIRST = place_of("a")
NOTHING: dict[str, dict[str, Any]] = {name: {"services": ()} for name in "cwx"}


def town(**of: dict[str, Any]) -> tuple[Network, dict[str, Node]]:
    """`a`, `b` and `c` in the east, `w` and `x` in the west, which is the east's fallback."""
    network = Network()
    nodes = {"a": network.add("a", config_service=True, fallback_groups=("west",), **of.get("a", {}))}
    for name, group in (("b", "east"), ("c", "east"), ("w", "west"), ("x", "west")):
        nodes[name] = network.add(name, group=group, peers=(FIRST,), **of.get(name, {}))
    network.run(6)
    return network, nodes


def need(node: Node, preferred: str, identity: str = "me", services: tuple[str, ...] = ()) -> dict[str, Any] | int:
    """Where it is sent; or the code of the refusal."""
    said = {"identity": identity, "services": list(services), "preferred_broker": preferred}
    ((command, heard),) = node.ask(BACKEND, ("NEEDBROKER", said))
    return int(heard["code"]) if command == "DISCONNECTERROR" else heard


def sent_to(node: Node, preferred: str, identity: str = "me", services: tuple[str, ...] = ()) -> Any:
    found = need(node, preferred, identity, services)
    return found if isinstance(found, int) else found["broker"]


def test_a_broker_that_is_heard_is_named_again_once():
    network, nodes = town()
    told = need(nodes["b"], "a")
    assert isinstance(told, dict)
    assert told["broker"] == "a"
    assert told["endpoints"]["backend"] == place_of("a", "backend")
    assert 0 <= told["after"] <= 2
    assert sent_to(nodes["b"], "a") != "a", "who asks again is believed"
    assert sent_to(nodes["b"], "a", "somebody else") == "a"
    network.run(31)
    assert sent_to(nodes["b"], "a") == "a"


def test_a_broker_that_is_gone_is_not_named():
    network, nodes = town()
    nodes["a"].kill()
    network.run(1.6)
    for number in range(20):
        assert sent_to(nodes["b"], "a", f"client-{number}") in ("b", "c")


@pytest.mark.parametrize("command", ["drain", "disable"])
def test_nobody_is_sent_to_a_broker_that_serves_no_more(command: str):
    network, nodes = town()
    assert nodes["c"].manage(command)[0] == 200
    network.run(1.5)
    assert {sent_to(nodes["b"], "gone", f"client-{number}") for number in range(20)} == {"a", "b"}


def test_those_who_ask_at_once_are_spread():
    _, nodes = town()
    found = Counter(sent_to(nodes["b"], "gone", f"client-{number}") for number in range(300))
    assert set(found) == {"a", "b", "c"}
    # It knows its own load, and what it sent elsewhere since their last heartbeat.
    assert max(found["a"], found["c"]) - min(found["a"], found["c"]) <= 1


def test_the_fallback_group_is_asked_when_nobody_of_the_own_is_left():
    network, nodes = town()
    for name in "ac":
        nodes[name].kill()
    network.run(6)
    assert sent_to(nodes["b"], "a") == "b"
    assert nodes["b"].manage("drain")[0] == 200
    assert sent_to(nodes["b"], "a", "other") in ("w", "x")
    for name in "wx":
        nodes[name].kill()
    network.run(6)
    assert need(nodes["b"], "a", "third") == 503


def test_services_decide():
    _, nodes = town(a={"services": ("paint",)}, b={"services": ("paint", "glue")}, c={"services": ("saw",)})
    assert sent_to(nodes["a"], "gone", services=("glue",)) == "b"
    assert sent_to(nodes["a"], "gone", services=("saw",)) == "c"
    assert sent_to(nodes["a"], "gone", services=("saw", "glue")) in ("w", "x"), "they serve all"


def test_a_backend_with_what_another_serves_is_sent_there():
    _, nodes = town(a={"services": ("paint",)}, b={"services": ("glue",)}, **NOTHING)
    ready = {"services": ["glue"], "config_version": nodes["a"].rank[0]}
    check = {"identity": "w1", "services": ["glue"]}
    heard = dict(nodes["a"].ask(BACKEND, ("CHECKCONFIG", check), ("READY", ready)))
    assert heard["CHANGEBROKER"]["broker"] == "b"
    ready["services"] = ["nobody.serves.this"]
    heard = dict(nodes["a"].ask(BACKEND, ("CHECKCONFIG", {"identity": "w2"}), ("READY", ready)))
    assert heard["DISCONNECTERROR"]["code"] == 403


def test_a_frontend_may_ask_too():
    _, nodes = town()
    ((command, said),) = nodes["b"].ask(FRONTEND, ("NEEDBROKER", {"identity": "f", "preferred_broker": "gone"}))
    assert command == "CHANGEBROKER"
    assert said["endpoints"]["frontend"] == place_of(said["broker"], "frontend")
