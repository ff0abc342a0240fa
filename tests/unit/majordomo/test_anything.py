"""Whatever frames come, nothing raises, nothing leaks to others, and a good peer is served all the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.examples import examples
from tests.fakes.majordomo import C01, C02, EMPTY, FINAL_02, HEARTBEAT_02, READY, W01, W02, MajordomoBroker

commands = st.sampled_from([bytes([number]) for number in range(8)])
names = st.sampled_from([b"echo", b"mmi.service", b"mmi.x", b"scale0.ping", b"scale0.x", b"x\n", b"\xff", 300 * b"n"])
frame = st.one_of(st.just(EMPTY), commands, names, st.sampled_from([C01, C02, W01, W02]), st.binary(max_size=20))
header = st.sampled_from([C01, C02, W01, W02])
message = st.builds(
    lambda lead, head, rest: [*([EMPTY] if lead else []), head, *rest],
    st.booleans(),
    header,
    st.lists(frame, max_size=6),
)
turn = st.tuples(
    st.sampled_from(["frontend", "backend", "peer"]),
    st.sampled_from(["w1", "w2", "c1"]),
    message,
    st.sampled_from([0.0, 0.0, 0.5, 3.0, 40.0]),
)


# Promise: MDP-5
@examples(300)
@given(st.lists(turn, max_size=12))
def test_nothing_that_a_stranger_says_raises_or_disturbs_another(turns):
    broker = MajordomoBroker()
    broker.say("wgood", W02, READY, b"good")
    for socket, who, frames, seconds in turns:
        broker.say(who, *frames, socket=socket)
        for _ in range(1 + int(seconds / 2)):
            broker.pass_time(min(seconds, 2.0))
            broker.say("wgood", W02, HEARTBEAT_02)
    broker.take("wgood")
    broker.say("cgood", EMPTY, C01, b"good", b"ask")
    requests = [frames for frames in broker.take("wgood") if frames[1] == b"\x02"]
    assert [frames[4:] for frames in requests] == [[b"ask"]]
    broker.say("wgood", W02, FINAL_02, requests[0][2], EMPTY, b"answer")
    assert broker.take("cgood") == [[EMPTY, C01, b"good", b"answer"]]


@examples(300)
@given(st.lists(st.tuples(message, st.sampled_from([0.0, 3.0])), max_size=12))
def test_what_a_peer_hears_is_always_a_whole_message_in_its_own_words(turns):
    broker = MajordomoBroker()
    spoken = set()
    for frames, seconds in turns:
        broker.say("w1", *frames)
        broker.pass_time(seconds)
        spoken.add(frames[0] or frames[1])
        for heard in broker.take("w1"):
            body = heard[1:] if heard[0] == EMPTY else heard
            assert body[0] in spoken & {W01, W02}
            assert len(body) in (2, *range(5, 1_000))


@examples(200)
@given(st.lists(st.tuples(message, st.sampled_from([0.0, 3.0, 100.0])), max_size=12))
def test_nothing_is_left_of_workers_that_are_gone(turns):
    broker = MajordomoBroker()
    for frames, seconds in turns:
        broker.say("w1", *frames)
        broker.pass_time(seconds)
    broker.pass_time(400)  # longer than any ban
    assert not broker.machine.members.by_name
    assert not list(broker.machine.connections)
    for header_ in (W01, W02):
        handler = broker.machine.handlers[header_]
        assert not handler._beats  # type: ignore[attr-defined]
        assert not handler._hushed  # type: ignore[attr-defined]
