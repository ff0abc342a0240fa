"""Who gets the work: slots, the least recently used, newcomers, services that change (PROTOCOL 2.1 and 2.2)."""

from __future__ import annotations

import pytest
import zmq

from tests.wire.scale0.raw import Raw, Raws, unique

pytestmark = pytest.mark.processes


def crew(net: Raws, services: list[list[str]], **options: int) -> list[Raw]:
    return [net.backend(*names, **options) for names in services]


def handed(caller: Raw, backends: list[Raw], service: str, times: int) -> list[int]:
    """Which backend got each of so many requests, one after the other, each answered at once."""
    out = []
    for number in range(times):
        caller.say("REQUEST", {"service": service, "id": number})
        out.append(first_to_hear(backends))
        backends[out[-1]].answer()
        assert caller.hear().command == "REPLY"
    return out


def first_to_hear(backends: list[Raw]) -> int:
    poller = zmq.Poller()
    for backend in backends:
        poller.register(backend.socket, zmq.POLLIN)
    ready = [socket for socket, _ in poller.poll(5_000)]
    assert len(ready) == 1, "exactly one backend is asked"
    return [backend.socket for backend in backends].index(ready[0])


# Promise: REQ-3
def test_work_goes_round(net):
    service = unique("round")
    backends = crew(net, [[service]] * 3)
    assert handed(net.frontend(), backends, service, 7) == [0, 1, 2, 0, 1, 2, 0]


# Promise: REQ-3
def test_one_stamp_counts_for_all_services_of_a_backend(net):
    a, b = unique("a"), unique("b")
    backends = crew(net, [[a, b], [b], [a]])
    caller = net.frontend()
    assert handed(caller, backends, a, 1) == [0]
    assert handed(caller, backends, b, 2) == [1, 0]
    assert handed(caller, backends, a, 2) == [2, 0]


# Promise: REQ-3
def test_a_newcomer_counts_from_its_ready(net):
    service = unique("new")
    backends = crew(net, [[service]] * 2)
    caller = net.frontend()
    assert handed(caller, backends, service, 1) == [0]
    backends.append(net.backend(service))
    assert handed(caller, backends, service, 4) == [1, 0, 2, 1]


# Promise: REQ-4
def test_no_backend_gets_more_than_its_slots(net):
    service = unique("slots")
    backend, caller = net.backend(service, slots=2), net.frontend()
    for number in range(5):
        caller.say("REQUEST", {"service": service, "id": number}, b"%d" % number)
    first, second = backend.hear(), backend.hear()
    assert [first.bodies, second.bodies] == [[b"0"], [b"1"]]
    assert backend.silent()
    backend.say("REPLY", {"id": second.options["id"]})
    third = backend.hear()
    assert third.bodies == [b"2"]
    assert backend.silent()


# Promise: REQ-4
def test_slots_are_shared_by_all_services_of_a_backend(net):
    a, b = unique("a"), unique("b")
    backend, caller = net.backend(a, b, slots=1), net.frontend()
    caller.say("REQUEST", {"service": a, "id": 1})
    caller.say("REQUEST", {"service": b, "id": 2})
    asked = backend.hear()
    assert asked.options["service"] == a
    assert backend.silent()
    backend.say("REPLY", {"id": asked.options["id"]})
    assert backend.hear().options["service"] == b


def test_a_free_slot_is_used_though_its_backend_was_used_last(net):
    service = unique("free")
    backends = crew(net, [[service]] * 2)
    caller = net.frontend()
    caller.say("REQUEST", {"service": service, "id": "held"})
    backends[0].hear_until("REQUEST")
    assert handed(caller, backends, service, 3) == [1, 1, 1]


def test_who_waited_longest_is_served_first_whatever_the_service(net):
    a, b = unique("a"), unique("b")
    caller = net.frontend()
    for number, service in enumerate((b, a, b, a)):
        caller.say("REQUEST", {"service": service, "id": number, "timeout": 20})
    assert caller.request("scale0.ping", id_="there").options["id"] == "there"
    backend = net.backend(a, b)
    for number in range(4):
        backend.answer()
        assert caller.hear().options["id"] == number


def test_ready_again_replaces_the_services_in_real_time_and_keeps_the_work(net):
    a, b = unique("a"), unique("b")
    backend, caller = net.backend(a), net.frontend()
    caller.say("REQUEST", {"service": a, "id": "kept"})
    asked = backend.hear_until("REQUEST")
    assert backend.ask("READY", {"services": [b], "config_version": 1, "slots": 2}).command == "READYOK"
    caller.say("REQUEST", {"service": a, "id": "nobody", "timeout": 0.1})
    caller.say("REQUEST", {"service": b, "id": "new"})
    backend.answer(b"b")
    backend.say("REPLY", {"id": asked.options["id"]}, b"a")
    heard = {h.options["id"]: h for h in (caller.hear(), caller.hear(), caller.hear())}
    assert heard["new"].bodies == [b"b"]
    assert heard["kept"].bodies == [b"a"]
    # It was offered just before, but not in the time of this request.
    assert heard["nobody"].code == 404


def test_no_services_drain_a_backend_and_its_work_is_still_answered(net):
    service = unique("drain")
    drained, caller = net.backend(service, slots=5), net.frontend()
    caller.say("REQUEST", {"service": service, "id": "old"})
    asked = drained.hear_until("REQUEST")
    assert drained.ask("READY", {"services": [], "config_version": 1}).command == "READYOK"
    other = net.backend(service)
    caller.say("REQUEST", {"service": service, "id": "new"})
    other.answer(b"other")
    assert caller.hear().bodies == [b"other"]
    drained.say("REPLY", {"id": asked.options["id"]}, b"drained")
    assert caller.hear().bodies == [b"drained"]
    assert drained.silent()


def test_fewer_slots_take_effect_when_the_work_is_done(net):
    service = unique("fewer")
    backend, caller = net.backend(service, slots=3), net.frontend()
    for number in range(6):
        caller.say("REQUEST", {"service": service, "id": number})
    held = [backend.hear_until("REQUEST") for _ in range(3)]
    assert backend.ask("READY", {"services": [service], "config_version": 1, "slots": 1}).command == "READYOK"
    for asked in held[:2]:
        backend.say("REPLY", {"id": asked.options["id"]})
        assert caller.hear().command == "REPLY"
    assert backend.silent()
    backend.say("REPLY", {"id": held[2].options["id"]})
    assert backend.hear().command == "REQUEST"


# Promise: FAIR-7
def test_a_request_is_handed_out_before_a_flood_that_came_earlier(net):
    service = unique("many")
    backend = net.backend(service, slots=1_000)
    honest, flood = net.frontend(), net.frontend()
    honest.say("REQUEST", {"service": service, "id": "first"}, b"honest")
    backend.answer()
    assert honest.hear().command == "REPLY"
    flood.batch(*(["REQUEST", {"service": service, "id": str(number)}, b"flood"] for number in range(2_000)))
    assert flood.request("scale0.ping").command == "REPLY", "the batch was read"
    honest.say("REQUEST", {"service": service, "id": "second"}, b"honest")
    before = 0
    while backend.hear_until("REQUEST").bodies != [b"honest"]:
        before += 1
    assert before <= 125
