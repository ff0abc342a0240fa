"""REQUEST, PARTIAL, REPLY, ERROR: whose id, which answer, how late (PROTOCOL 2.2)."""

from __future__ import annotations

import time

import pytest
import zmq

from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import unique

pytestmark = pytest.mark.processes


# Promise: REQ-6
@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
@pytest.mark.parametrize("bodies", [(), (b"",), (b"one",), (b"a", b"", b"\xff\x00", b"d" * 100_000)], ids=len)
def test_bodies_pass_through_untouched_both_ways(net, kind, bodies):
    service = unique("echo")
    backend, caller = net.backend(service), net("frontend", kind)
    caller.say("REQUEST", {"service": service, "id": 1}, *bodies)
    asked = backend.hear()
    assert asked.bodies == list(bodies)
    backend.say("REPLY", {"id": asked.options["id"]}, *bodies)
    answered = caller.hear()
    assert (answered.command, answered.bodies) == ("REPLY", list(bodies))
    assert answered.options == {"id": 1, "service": service}


# Promise: REQ-6
@pytest.mark.parametrize("id_", ["a", "", "ünïcödé", "x" * 128, 0, -1, 2**63 - 1, -(2**63)])
def test_a_frontends_own_id_comes_back_as_it_was(net, id_):
    assert net.frontend().request("scale0.ping", id_=id_).options["id"] == id_


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("id_", ["x" * 129, 2**63, -(2**63) - 1, 10**30, 1.5, True, None, [1], {}])
def test_an_id_that_cannot_be_given_back_is_refused(caller, id_, batch):
    caller.check(batch=batch)
    assert caller.request("scale0.ping", id_=id_).code == 400
    assert caller.request("scale0.ping").command == "REPLY"


def test_the_backend_gets_an_id_of_the_brokers_own(net):
    service = unique("echo")
    backend = net.backend(service, slots=10)
    callers = [net.frontend() for _ in range(3)]
    for caller in callers:
        caller.say("REQUEST", {"service": service, "id": "same"}, b"x")
    asked = [backend.hear_until("REQUEST") for _ in callers]
    assert len({heard.options["id"] for heard in asked}) == 3
    assert all(0 < heard.options["timeout"] < 30.001 for heard in asked)  # a sum and a difference of floats


# Promise: REQ-6
def test_parts_come_in_order_before_the_last_one(net):
    service = unique("stream")
    backend, caller = net.backend(service), net.frontend()
    caller.say("REQUEST", {"service": service, "id": "s"})
    id_ = backend.hear().options["id"]
    for number in range(20):
        backend.say("PARTIAL", {"id": id_}, b"%d" % number)
    backend.say("REPLY", {"id": id_}, b"end")
    heard = [caller.hear() for _ in range(21)]
    assert [(h.command, h.bodies) for h in heard] == [
        *(("PARTIAL", [b"%d" % number]) for number in range(20)),
        ("REPLY", [b"end"]),
    ]
    assert all(h.options["id"] == "s" for h in heard)


# Promise: WIRE-1
def test_a_req_socket_gets_the_parts_joined_into_its_one_reply(net):
    service = unique("stream")
    backend, caller = net.backend(service), net("frontend", zmq.REQ)
    for _ in range(2):
        caller.say("REQUEST", {"service": service, "id": 5})
        id_ = backend.hear().options["id"]
        backend.say("PARTIAL", {"id": id_}, b"a", b"b")
        backend.say("PARTIAL", {"id": id_}, b"c")
        backend.say("REPLY", {"id": id_}, b"d")
        assert caller.hear().bodies == [b"a", b"b", b"c", b"d"]


def test_a_backends_error_reaches_the_one_who_asked(net):
    service = unique("fail")
    backend, caller = net.backend(service), net.frontend()
    caller.say("REQUEST", {"service": service, "id": 9})
    backend.say("ERROR", {"id": backend.hear().options["id"], "code": 418, "message": "teapot"})
    heard = caller.hear()
    assert heard.command == "ERROR"
    assert heard.options == {"id": 9, "code": 418, "message": "teapot"}


@pytest.mark.parametrize("code", [2**31, -(2**31) - 1, 2**64, 10**30])
def test_an_error_code_that_nobody_could_record_costs_its_backend_and_no_one_else(net, code):
    service, caller, backend = unique("fail"), net.frontend(), net("backend")
    caller.check(batch=True)
    backend.ready(service)
    caller.say("REQUEST", {"service": service, "id": 9})
    backend.say("ERROR", {"id": backend.hear().options["id"], "code": code})
    assert backend.hear().code == 400
    assert caller.hear().code == 502
    assert caller.request("scale0.ping").command == "REPLY"


# Promise: REQ-2
def test_sending_a_request_again_does_not_do_it_twice(net):
    service = unique("echo")
    backend, caller = net.backend(service, slots=5), net.frontend()
    for _ in range(5):
        caller.say("REQUEST", {"service": service, "id": "once"})
    backend.answer()
    assert caller.hear().command == "REPLY"
    assert backend.silent()
    assert caller.silent(0)
    caller.say("REQUEST", {"service": service, "id": "once"})
    backend.answer()
    assert caller.hear().command == "REPLY"


def test_an_answer_to_nothing_is_dropped_and_is_no_offence(net):
    service = unique("echo")
    backend = net.backend(service)
    for number in range(30):
        backend.say(("REPLY", "PARTIAL", "ERROR")[number % 3], {"id": f"nothing-{number}"}, b"?")
    assert backend.ask("HEARTBEAT").command == "HEARTBEAT"


# Promise: REQ-2
def test_a_backend_cannot_answer_for_another(net):
    service = unique("echo")
    backend, thief, caller = net.backend(service), net.backend(unique("other")), net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    id_ = backend.hear().options["id"]
    thief.say("REPLY", {"id": id_}, b"forged")
    assert thief.ask("HEARTBEAT").command == "HEARTBEAT"
    backend.say("REPLY", {"id": id_}, b"true")
    assert caller.hear().bodies == [b"true"]


# Promise: REQ-1
def test_an_answer_given_twice_counts_once(net):
    service = unique("echo")
    backend, caller = net.backend(service), net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    id_ = backend.hear().options["id"]
    backend.say("REPLY", {"id": id_}, b"1")
    backend.say("REPLY", {"id": id_}, b"2")
    assert caller.hear().bodies == [b"1"]
    assert caller.silent()


# Promise: REQ-1
def test_nobody_offers_it_is_404_and_everybody_is_busy_is_504(net):
    service = unique("busy")
    caller = net.frontend()
    assert caller.request(unique("nothing"), timeout=0.1).code == 404
    backend = net.backend(service)
    caller.say("REQUEST", {"service": service, "id": "held", "timeout": 30})
    backend.hear_until("REQUEST")
    assert caller.request(service, id_="waiting", timeout=0.1).code == 504


# Promise: REQ-1
def test_a_silent_backend_is_504_in_time_and_its_late_answer_is_dropped(net):
    service = unique("slow")
    backend, caller = net.backend(service), net.frontend()
    start = time.monotonic()
    heard = caller.request(service, timeout=0.2)
    assert heard.code == 504
    assert 0.2 <= time.monotonic() - start < 1.0
    backend.answer(b"too late")
    assert caller.silent()
    caller.say("REQUEST", {"service": service, "id": 2})
    backend.answer(b"in time")
    assert caller.hear().bodies == [b"in time"]


@pytest.mark.parametrize("timeout", [0, -1, 86_401, 1e300])
def test_a_timeout_outside_its_range_is_an_error_of_that_request(net, timeout):
    heard = net.frontend().request("any", timeout=timeout, id_="t")
    assert (heard.command, heard.code, heard.options["id"]) == ("ERROR", 400, "t")


def test_a_request_waits_for_a_backend_that_comes_in_time(net):
    service, caller = unique("soon"), net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1, "timeout": 20})
    assert caller.silent(0.1)
    net.backend(service).answer(b"here")
    assert caller.hear().bodies == [b"here"]


# Promise: REQ-5
def test_the_queue_of_a_service_is_bounded_and_refuses_with_429(tmp_path):
    with own_broker(tmp_path, request_queue_limit=3) as (_, net):
        caller = net.frontend()
        for number in range(5):
            caller.say("REQUEST", {"service": "full", "id": number})
        assert [(h.code, h.options["id"]) for h in (caller.hear(), caller.hear())] == [(429, 3), (429, 4)]
        backend = net.backend("full")
        for number in range(3):
            backend.answer()
            assert caller.hear().options["id"] == number


# Promise: WIRE-1
def test_nothing_unasked_goes_to_a_req_socket(net, local):
    quiet = net("frontend", zmq.REQ)
    quiet.check(unique("quiet"))
    before = net.frontend().manage("get_config", local).body
    changed = net.frontend().manage("patch_config", local, set={"default_heartbeat_interval": 61})
    assert changed.body["version"] == before["version"] + 1
    assert quiet.silent()
    net.frontend().manage("patch_config", local, set={"default_heartbeat_interval": 60})
    assert quiet.request("scale0.ping").command == "REPLY"


def test_the_broker_answers_the_reserved_services_itself(net):
    service, me = unique("echo"), unique("worker")
    net.backend(service, identity=me, slots=3)
    caller = net.frontend()
    rows = caller.request("scale0.services").body["items"]
    assert [r for r in rows if r["service"] == service] == [
        {"service": service, "backends": 1, "slots": 3, "busy": 0, "waiting": 0, "where": ["broker-1"]}
    ]
    clients = caller.request("scale0.clients").body["items"]
    assert [r["services"] for r in clients if r["identity"] == me] == [[service]]
    assert caller.request("scale0.brokers").body["items"][0]["broker"] == "broker-1"
    assert caller.request("scale0.ping").body["state"] == "active"
    assert caller.request("scale0.nothing").code == 404


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"[" * 100_000, b"\xff", b'{"limit": -1}', b'{"limit": 1e99}'])
def test_a_reserved_service_takes_any_body(net, body):
    assert net("frontend", zmq.REQ).request("scale0.services", body).command == "REPLY"
