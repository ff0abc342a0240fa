"""Who is who: identities, connections, take-overs, reserved names and roles (PROTOCOL 2 and 3)."""

from __future__ import annotations

import pytest

from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws, unique

pytestmark = pytest.mark.processes


# Promise: IDENT-1
def test_a_connection_cannot_be_two_clients(caller):
    caller.check(unique("me"))
    refused = caller.check(unique("somebody"))
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 409)


def test_the_first_command_that_names_an_identity_decides(net):
    backend = net("backend")
    backend.check(unique("me"))
    said = {"services": [], "config_version": 1, "identity": unique("somebody")}
    assert backend.ask("READY", said).code == 409


def test_asking_for_a_broker_under_another_name_is_refused(caller):
    caller.check(unique("me"))
    refused = caller.ask("NEEDBROKER", {"identity": unique("somebody"), "services": []})
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 409)


def test_a_client_may_name_itself_again(net):
    backend, me = net("backend"), unique("me")
    backend.check(me)
    assert backend.check(me).command == "CONFIG"
    said = {"services": [], "config_version": 1, "identity": me}
    assert backend.ask("READY", said).options["identity"] == me


# Promise: IDENT-1
def test_a_newcomer_takes_over_and_the_old_connection_is_told(net):
    me, service = unique("worker"), unique("echo")
    old = net.backend(service, identity=me)
    new = net.backend(service, identity=me)
    told = old.hear()
    assert (told.command, told.code) == ("DISCONNECTERROR", 409)
    caller = net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    new.answer(b"new")
    assert caller.hear().bodies == [b"new"]
    assert old.silent()


# Promise: IDENT-1
def test_the_same_name_as_frontend_and_as_backend_are_two_clients(net):
    me = unique("both")
    backend = net.backend(unique("echo"), identity=me)
    net.frontend().check(me)
    assert backend.silent()


def test_answers_follow_a_frontend_to_its_new_connection(net):
    me, service = unique("caller"), unique("slow")
    backend = net.backend(service)
    old = net.frontend()
    old.check(me)
    old.say("REQUEST", {"service": service, "id": "q"})
    asked = backend.hear_until("REQUEST")
    new = net.frontend()
    new.check(me)
    backend.say("REPLY", {"id": asked.options["id"]}, b"late")
    assert new.hear().bodies == [b"late"]


# Promise: IDENT-2
@pytest.mark.parametrize("name", ["scale0.ping", "scale0.mine", "mmi.service", "mmi.x"])
def test_reserved_names_cannot_be_offered(net, name):
    backend = net("backend")
    backend.check()
    refused = backend.ask("READY", {"services": [name], "config_version": 1})
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 403)


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "x" * 256, "ä" * 128])
def test_a_service_name_outside_the_rule_is_refused(net, name):
    backend = net("backend")
    backend.check()
    assert backend.ask("READY", {"services": [name], "config_version": 1}).code == 400
    assert net.frontend().request(name).code == 400


def test_a_service_name_of_255_bytes_is_served(net):
    name = unique("x").ljust(255, "x")
    backend, caller = net.backend(name), net.frontend()
    caller.say("REQUEST", {"service": name, "id": 1})
    backend.answer()
    assert caller.hear().command == "REPLY"


def test_a_thousand_services_are_one_backends_limit(net):
    backend = net("backend")
    backend.check()
    names = [unique("s") for _ in range(1_001)]
    assert backend.ask("READY", {"services": names[:1_000], "config_version": 1}).command == "READYOK"
    refused = backend.ask("READY", {"services": names, "config_version": 1})
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 413)


# Promise: IDENT-2
def test_a_broker_with_a_list_of_services_takes_no_others(tmp_path):
    with own_broker(tmp_path, services=["paint", "print"]) as (_, net):
        backend = net("backend")
        backend.check()
        assert backend.ask("READY", {"services": ["paint"], "config_version": 1}).command == "READYOK"
        refused = backend.ask("READY", {"services": ["paint", "sing"], "config_version": 1})
        assert (refused.command, refused.code) == ("DISCONNECTERROR", 403)
        needy = net.frontend().ask("NEEDBROKER", {"services": ["sing"]})
        assert (needy.command, needy.code) == ("DISCONNECTERROR", 503)


def test_leaving_in_order_gives_the_work_back_at_once(net: Raws):
    service = unique("echo")
    leaver = net.backend(service)
    caller = net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1, "retry": True, "timeout": 20}, b"work")
    leaver.hear_until("REQUEST")
    stayer = net.backend(service)
    leaver.say("DISCONNECT")
    stayer.answer(b"instead")
    assert caller.hear().bodies == [b"instead"]
    assert leaver.ask("HEARTBEAT").command == "FORCENEGOTIATE"
