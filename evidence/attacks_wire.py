"""Attacks on the wire without keys: protocols that are none, routing ids, malformed and oversized messages, bans."""

from __future__ import annotations

import json
import time

import msgspec

from evidence import raw
from evidence.raw import MAGIC, Answer, Raw
from evidence.site import Site, attack, given, must

CLOSE_SECONDS = 9.0
"""A handshake has 5 s; a busy machine adds some."""
ENDLESS_SECONDS = 2.0
REFUSALS = ("DISCONNECTERROR", "ERROR", "closed", "FORCENEGOTIATE")


def refused(answer: Answer, *codes: int) -> str:
    """The answer as text, if it is a refusal with one of these codes; a connection that was closed is one, too."""
    ok = answer.command == "closed" or (answer.command in REFUSALS and answer.code in codes)
    must(ok, f"answered with {answer.text}, not with {' or '.join(map(str, codes))}")
    return answer.text


def closed(site: Site, data: bytes, socket: str = "frontend") -> str:
    """Send these bytes on a new connection, which must be ended."""
    made = raw.dial(site.open.endpoints[socket])
    try:
        made.sendall(data)
        seconds = raw.closed_within(made, CLOSE_SECONDS)
    except OSError:
        seconds = 0.0
    finally:
        made.close()
    must(seconds is not None, f"the connection was not ended within {CLOSE_SECONDS:.0f} s")
    return f"closed after {seconds:.1f} s"


@attack("ZMTP-2")
def http_on_the_port(site: Site) -> str:
    return closed(site, b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n\x05\x00abcd")


@attack("ZMTP-2")
def zmtp_1(site: Site) -> str:
    return closed(site, b"\x01\x00\x09\x00SCALE0/1")


@attack("ZMTP-2")
def zmtp_2(site: Site) -> str:
    return closed(site, raw.greeting(version=b"\x02\x00") + raw.ready())


@attack("ZMTP-2")
def plain_mechanism(site: Site) -> str:
    return closed(site, raw.greeting(b"PLAIN") + raw.command(b"HELLO", b"\x05admin\x05admin"))


@attack("ZMTP-2", slow=True)
def slow_handshake(site: Site) -> str:
    """One byte, then silence: others are served meanwhile, and the connection ends."""
    return closed(site, b"\xff")


@attack("ZMTP-2", slow=True)
def half_a_handshake(site: Site) -> str:
    return closed(site, raw.greeting())


@attack("ZMTP-2")
def message_before_the_handshake(site: Site) -> str:
    made = raw.dial(site.open.endpoints["frontend"])
    try:
        made.sendall(raw.greeting() + raw.message([MAGIC, b"REQUEST", b'{"service":"scale0.ping","id":"early"}']))
        made.settimeout(2.0)
        heard = b""
        try:
            while more := made.recv(65_536):
                heard += more
        except OSError:
            pass
    finally:
        made.close()
    must(b"early" not in heard, "a request was answered before the handshake was complete")
    return "not answered"


@attack("ZMTP-3")
def frame_of_a_terabyte(site: Site) -> str:
    made = site.raw()
    made.send_bytes(bytes((2,)) + (2**40).to_bytes(8, "big") + b"x" * 1000)
    seconds = raw.closed_within(made.socket, CLOSE_SECONDS)
    must(seconds is not None, "a frame of a terabyte was waited for")
    return f"closed after {seconds:.1f} s"


@attack("ZMTP-4")
def routing_ids_of_libzmq(site: Site) -> str:
    """Ids that libzmq would generate itself; an assertion once ended brokers that used it."""
    taken = [site.raw(identity=b"\0" + (0x6B8B4567 + n).to_bytes(4, "big")) for n in range(100)]
    must(all(one.ping() for one in (*taken[:5], site.raw(), site.raw())), "a client was not answered")
    return "ignored; everyone was answered"


@attack("ZMTP-4")
def one_routing_id_for_two(site: Site) -> str:
    """Each of two clients with one routing id gets its own answer."""
    service = site.unique("twins")
    backend = site.raw("backend")
    backend.register(service, service, slots=4)
    one, two = site.raw(identity=b"same"), site.raw(identity=b"same")
    for made, body in ((one, b"of one"), (two, b"of two")):
        made.say("REQUEST", {"service": service, "id": "1"}, body)
    for _ in range(2):
        asked = backend.hear_one_of("REQUEST")
        given(asked is not None, "a request did not arrive")
        assert asked is not None
        backend.say("REPLY", {"id": asked.options["id"]}, *asked.bodies)
    for made, body in ((one, b"of one"), (two, b"of two")):
        heard = made.hear_one_of("REPLY")
        must(heard is not None and heard.bodies == [body], f"the answer {body!r} did not reach its own connection")
    return "each got its own answer"


@attack("ZMTP-4")
def routing_id_of_the_dead(site: Site) -> str:
    """An answer for a client that is gone must not reach the next one with its id."""
    service = site.unique("heir")
    backend = site.raw("backend")
    backend.register(service, service)
    dead = site.raw(identity=b"heir")
    dead.say("REQUEST", {"service": service, "id": "1"}, b"secret")
    asked = backend.hear_one_of("REQUEST")
    dead.close()
    heir = site.raw(identity=b"heir")
    heir.ping()
    assert asked is not None
    backend.say("REPLY", {"id": asked.options["id"]}, b"secret")
    heard = heir.hear(0.5)
    must(heard is None or b"secret" not in heard.bodies, "the heir of a routing id read a secret")
    return "silence"


@attack("WIRE-5")
def ten_thousand_parts(site: Site) -> str:
    made = site.raw()
    try:
        made.send([MAGIC, b"REQUEST", b'{"service":"scale0.ping","id":1}', *[b"x"] * 10_000])
        return refused(made.hear() or Answer("silence", {}, []), 413, 400)
    except ConnectionError:
        return "closed"


@attack("WIRE-5", slow=True)
def endless_parts(site: Site) -> str:
    """Frames without an end: memory must stay bounded."""
    made = site.raw()
    before = site.open.memory_bytes()
    piece = raw.frame(b"x" * 200, raw.MORE) * 5_000
    end, sent = time.monotonic() + ENDLESS_SECONDS, 0
    try:
        while time.monotonic() < end:
            made.send_bytes(piece)
            sent += len(piece)
    except OSError:
        return f"closed after {sent // 1_048_576} MiB"
    grown = (site.open.memory_bytes() - before) // 1_048_576
    must(grown < 60, f"one message of {sent // 1_048_576} MiB made the broker grow by {grown} MiB")
    return f"dropped; {sent // 1_048_576} MiB made the broker grow by {grown} MiB"


@attack("WIRE-5")
def message_of_nine_megabytes(site: Site) -> str:
    made = site.raw()
    return refused(made.ask("REQUEST", {"service": "scale0.ping", "id": 1}, bytes(9 * 1024 * 1024)), 413)


@attack("WIRE-5")
def options_of_a_megabyte(site: Site) -> str:
    return refused(site.raw().ask("REQUEST", {"service": "scale0.ping", "id": 1, "pad": "x" * 1_000_000}), 413)


@attack("WIRE-5")
def deep_json(site: Site) -> str:
    depth = 30_000
    options = b'{"service":"scale0.ping","id":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    return refused(site.raw().ask("REQUEST", options), 400, 413)


@attack("WIRE-5")
def json_deeper_than_the_limit(site: Site) -> str:
    options = b'{"service":"scale0.ping","id":1,"x":' + b"[" * 70 + b"]" * 70 + b"}"
    return refused(site.raw().ask("REQUEST", options), 400)


@attack("WIRE-4")
def not_a_number(site: Site) -> str:
    made = site.raw()
    return refused(made.ask("REQUEST", b'{"service":"scale0.ping","id":1,"timeout":NaN}'), 400)


@attack("WIRE-4")
def infinite_timeout(site: Site) -> str:
    made = site.raw()
    return refused(made.ask("REQUEST", b'{"service":"nobody","id":1,"timeout":1e999}'), 400)


@attack("WIRE-4")
def timeout_out_of_range(site: Site) -> str:
    made = site.raw()
    first = refused(made.ask("REQUEST", {"service": "nobody", "id": 1, "timeout": -1}), 400)
    return f"{first}; {refused(made.ask('REQUEST', {'service': 'nobody', 'id': 2, 'timeout': 1e8}), 400)}"


@attack("WIRE-4")
def lone_surrogate_and_bad_utf8(site: Site) -> str:
    made = site.raw()
    first = refused(made.ask("REQUEST", b'{"service":"\xff\xfe","id":1}'), 400)
    second = site.raw().ask("REQUEST", b'{"service":"\\ud800","id":1}')
    return f"{first}; {refused(second, 400, 404)}"


@attack("WIRE-4")
def duplicate_keys(site: Site) -> str:
    """Of two keys with the same name the last one counts, everywhere."""
    answer = site.raw().ask("REQUEST", b'{"service":"nobody","id":"a","service":"scale0.ping","id":"b"}')
    must(answer.command == "REPLY" and answer.options.get("id") == "b", f"answered with {answer.text}")
    return "the last one counts"


@attack("WIRE-5")
def huge_batch(site: Site) -> str:
    made = site.raw()
    many = msgspec.msgpack.encode([["REQUEST", {"service": "scale0.ping", "id": 1}]] * 10_001)
    made.send([MAGIC, b"BATCH", b"", many])
    answer = made.hear() or Answer("silence", {}, [])
    return refused(answer, 413)


@attack("WIRE-2")
def batch_in_a_batch(site: Site) -> str:
    """It is refused by itself, and the message after it is served."""
    made = site.raw()
    inner = msgspec.msgpack.encode([["REQUEST", {"service": "scale0.ping", "id": "in"}]])
    both = [["BATCH", {}, inner], ["REQUEST", {"service": "scale0.ping", "id": "out"}]]
    made.send([MAGIC, b"BATCH", b"", msgspec.msgpack.encode(both)])
    first = made.hear() or Answer("silence", {}, [])
    text = refused(first, 403)
    second = made.hear(2.0)
    must(second is None or second.options.get("id") != "in", "the inner message was served")
    return text


@attack("WIRE-7")
def commands_of_the_other_role(site: Site) -> str:
    first = refused(site.raw().ask("READY", {"services": ["x"], "config_version": 1}), 403)
    refused(site.raw("backend").ask("REQUEST", {"service": "scale0.ping", "id": 1}), 403)
    refused(site.raw().ask("FORWARD", {"service": "x", "id": 1}), 403)
    refused(site.raw().ask("TASKSDONE", {}, b"[]"), 403)
    refused(site.raw().ask("HELLO", {"identity": "evil"}), 403)
    return first


@attack("WIRE-4")
def nonsense_until_banned(site: Site) -> str:
    """An error client is ignored; others are not."""
    made = site.raw()
    for _ in range(30):
        made.say("NONSENSE")
    must(not made.ping(1.5), "a client that sent 30 invalid messages is still served")
    must(site.raw().ping(), "another client is not served")
    return "ignored after the limit"


@attack("IDENT-2")
def reserved_services(site: Site) -> str:
    texts = [refused(site.raw("backend").register(site.unique("thief"), name), 403) for name in RESERVED]
    return texts[0]


RESERVED = ("scale0.ping", "mmi.service", "titanic.request")


@attack("IDENT-1")
def second_identity_on_one_connection(site: Site) -> str:
    made = site.raw("backend")
    made.ask("CHECKCONFIG", {"identity": site.unique("first")})
    return refused(made.ask("CHECKCONFIG", {"identity": site.unique("second")}), 409)


@attack("IDENT-1")
def identity_taken_over(site: Site) -> str:
    """The old connection is told, and its work moves to the newcomer."""
    name, service = site.unique("twin"), site.unique("service")
    old, new = site.raw("backend"), site.raw("backend")
    old.register(name, service)
    new.register(name, service)
    heard = old.hear(5.0) or Answer("silence", {}, [])
    text = refused(heard, 409)
    caller = site.raw()
    caller.say("REQUEST", {"service": service, "id": 1, "timeout": 5}, b"x")
    must(new.hear_one_of("REQUEST", seconds=5.0) is not None, "the newcomer gets no work")
    return text


@attack("NEGO-2")
def ready_without_a_configuration(site: Site) -> str:
    service = site.unique("unready")
    made = site.raw("backend")
    first = made.ask("READY", {"services": [service], "config_version": 1, "time": time.time()})
    must(first.command == "FORCENEGOTIATE", f"READY without CHECKCONFIG was answered with {first.text}")
    made.ask("CHECKCONFIG", {"identity": service})
    second = made.ask("READY", {"services": [service], "config_version": 999, "time": time.time()})
    must(second.command == "FORCENEGOTIATE", f"READY with a wrong version was answered with {second.text}")
    site.raw().say("REQUEST", {"service": service, "id": 1, "timeout": 2}, b"x")
    must(made.hear_one_of("REQUEST", seconds=1.0) is None, "a backend without a configuration got work")
    return "FORCENEGOTIATE"


@attack("CONF-3")
def client_with_a_newer_configuration(site: Site) -> str:
    """A stale broker downgrades no client."""
    answer = site.raw().ask("CHECKCONFIG", {"config_version": 10_000, "config_hash": "ab"})
    must(answer.command == "CONFIGACK", f"answered with {answer.text}")
    must(answer.options["config_version"] == 10_000, f"downgraded to {answer.options['config_version']}")
    return "CONFIGACK with the client's own version"


@attack("REQ-2")
def answer_to_a_request_of_another(site: Site) -> str:
    """Only the backend that holds a request may answer it."""
    service = site.unique("held")
    holder, thief = site.raw("backend"), site.raw("backend")
    holder.register(site.unique("holder"), service)
    thief.register(site.unique("thief"), site.unique("other"))
    caller = site.raw()
    caller.say("REQUEST", {"service": service, "id": "q", "timeout": 10}, b"x")
    asked = holder.hear_one_of("REQUEST")
    assert asked is not None
    thief.say("REPLY", {"id": asked.options["id"]}, b"stolen")
    early = caller.hear(0.7)
    must(early is None, "a request was answered by a backend that does not hold it")
    holder.say("REPLY", {"id": asked.options["id"]}, b"true")
    heard = caller.hear_one_of("REPLY")
    must(heard is not None and heard.bodies == [b"true"], "the answer of the holder did not arrive")
    return "ignored"


@attack("WIRE-5")
def too_many_services(site: Site) -> str:
    many = [f"s{n}" for n in range(1_001)]
    text = refused(site.raw("backend").register(site.unique("greedy"), *many), 413)
    refused(site.raw("backend").register(site.unique("greedy"), "x" * 256), 400)
    return text


@attack("WIRE-5")
def more_slots_than_the_limit(site: Site) -> str:
    name = site.unique("wide")
    return refused(site.raw("backend").register(name, name, slots=10_001), 400, 413)


@attack("REQ-4")
def more_work_than_slots(site: Site) -> str:
    """A backend with one slot gets one request, whatever is sent."""
    service = site.unique("narrow")
    backend = site.raw("backend")
    backend.register(service, service, slots=1)
    callers = [site.raw() for _ in range(3)]
    for caller in callers:
        caller.say("REQUEST", {"service": service, "id": 1, "timeout": 5}, b"x")
    given(backend.hear_one_of("REQUEST") is not None, "no request arrived")
    must(backend.hear_one_of("REQUEST", seconds=0.7) is None, "a backend with one slot got two requests")
    return "one request at a time"


@attack("CURVE-13")
def requests_beyond_the_rate(site: Site) -> str:
    """`max_requests_per_second` of that broker is 2,000."""
    made = site.raw()
    data = b"".join(
        raw.message([MAGIC, b"REQUEST", json.dumps({"service": "scale0.ping", "id": n}).encode()]) for n in range(6_000)
    )
    made.send_bytes(data)
    codes = {"REPLY": 0, "ERROR": 0}
    while sum(codes.values()) < 6_000 and (answer := made.hear(3.0)) is not None:
        codes[answer.command] = codes.get(answer.command, 0) + 1
    must(codes["ERROR"] > 0, "6,000 requests at once were all served")
    return f"{codes['REPLY']} answered, {codes['ERROR']} refused with 429"


@attack("LIVE-5")
def control_beyond_the_rate(site: Site) -> str:
    """A connection may negotiate 200 times in a second; what exceeds that is bad input."""
    made = site.raw()
    made.send_bytes(raw.message([MAGIC, b"CHECKCONFIG", b'{"config_type":"json"}']) * 400)
    answers = 0
    while answers < 400 and made.hear(1.0) is not None:
        answers += 1
    must(not made.ping(1.5), f"a connection that negotiated {answers} times in a second is still served")
    return f"{answers} answered, then ignored"


@attack("WIRE-6", slow=True)
def client_that_never_reads(site: Site) -> str:
    """It is disconnected, and memory stays bounded."""
    service = site.unique("big")
    backend = site.raw("backend")
    backend.register(service, service, slots=100)
    caller: Raw = site.raw()
    before = site.open.memory_bytes()
    for number in range(60):
        try:
            caller.say("REQUEST", {"service": service, "id": number, "timeout": 20}, b"x")
        except OSError:
            break
        asked = backend.hear_one_of("REQUEST", seconds=3.0)
        if asked is None:
            break
        backend.say("REPLY", {"id": asked.options["id"]}, bytes(2_000_000))
    time.sleep(1.0)
    grown = (site.open.memory_bytes() - before) // 1_048_576
    seconds = raw.closed_within(caller.socket, 3.0)
    must(seconds is not None, f"a client that never reads stays connected; the broker grew by {grown} MiB")
    must(grown < 100, f"the broker grew by {grown} MiB")
    return f"closed; the broker grew by {grown} MiB"
