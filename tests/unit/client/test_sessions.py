"""Sessions without sockets: what is sent again, what is never sent twice, and that every call ends, exactly once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.core.calls import GRACE_SECONDS, CallAnswered, CallFailed, ManagementAnswered, PartialReply
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import DOWN, ENDED, RECHECK_SECONDS, UP
from tests.fakes.examples import examples
from tests.processes.client.bench import Bench

PLACE = "tcp://127.0.0.1:5700"
OTHER = "tcp://127.0.0.2:5700"
GRAIN_SECONDS = 1 / 32
"""Deadlines lie in buckets: an end may come so much later."""


def frontend(patience: float | None = None) -> Bench:
    bench = Bench(FrontendSession([PLACE], None, random.Random(3), patience))
    bench.act("start")
    bench.hush()
    return bench


def up(bench: Bench, boot: str = "b1") -> Bench:
    bench.ack()
    bench.pong(boot)
    bench.news.clear()
    bench.hush()
    return bench


def ask(bench: Bench, tag: str, timeout: float = 30.0, retry: bool = False) -> None:
    bench.act("request", "s", [tag.encode()], timeout, retry, tag)


def requests(bench: Bench) -> list[str]:
    """The tags of what was asked since the last time, without pings."""
    return [said[2].decode() for said in bench.hush() if said[0] == "REQUEST" and said[1]["id"] != "~"]


def back(bench: Bench, boot: str) -> None:
    """The line is lost, and comes back to a broker of this boot."""
    bench.act("closed", "the cable")
    bench.reopen()
    bench.ack()
    bench.pong(boot)


def test_a_request_that_may_not_run_twice_is_sent_once_and_one_that_may_again() -> None:
    bench = up(frontend())
    ask(bench, "once")
    ask(bench, "again", retry=True)
    assert requests(bench) == ["once", "again"]
    back(bench, "b1")
    assert requests(bench) == ["again"]
    assert not bench.take(CallFailed), "the same broker still has it, and will answer here"


def test_another_boot_means_502_at_once_for_what_the_old_one_had() -> None:
    bench = up(frontend())
    for tag, retry in (("once", False), ("again", True), ("spoke", True)):
        ask(bench, tag, retry=retry)
    ids = {said[2].decode(): said[1]["id"] for said in bench.hush()}
    bench.act("manage", {"command": "run_check"}, b"", 30.0, "command")
    bench.hear("PARTIAL", b"part", id=ids["spoke"])
    begin = bench.mono
    back(bench, "b2")
    assert {(one.tag, one.code) for one in bench.take(CallFailed)} == {("once", 502), ("spoke", 502), ("command", 502)}
    assert bench.mono - begin <= 1.0
    assert requests(bench) == ["again"]


def test_what_was_asked_while_the_line_was_down_is_not_blamed_on_the_restart() -> None:
    bench = up(frontend())
    bench.act("closed", "the cable")
    ask(bench, "later")
    assert requests(bench) == []
    bench.reopen()
    assert requests(bench) == ["later"]
    bench.ack()
    bench.pong("b2")
    assert not bench.take(CallFailed)


def test_what_never_left_is_sent_with_the_next_connection() -> None:
    bench = up(frontend())
    ask(bench, "unsent")
    ask(bench, "sent")
    bench.act("manage", {"command": "status"}, b"", 30.0, "command")
    said = bench.hush()
    bench.session.unsent([said[0], said[2]])
    bench.act("closed", "the connection broke")
    bench.reopen()
    assert [one[0] for one in bench.said if one[0] == "MANAGEMENTREQ"] == ["MANAGEMENTREQ"]
    assert requests(bench) == ["unsent"]
    bench.pong("b2")
    assert [one.tag for one in bench.take(CallFailed)] == ["sent"]


def test_what_was_sent_on_a_connection_that_never_came_to_be_was_not_sent() -> None:
    bench = frontend()
    ask(bench, "early")
    assert requests(bench) == ["early"]
    bench.act("closed", "refused")
    assert isinstance(bench.session, FrontendSession)
    bench.session.never_connected()
    bench.reopen()
    assert requests(bench) == ["early"]
    bench.act("closed", "it was there, and broke")
    bench.reopen()
    assert requests(bench) == []


def test_what_a_broker_refused_that_is_joining_is_asked_again() -> None:
    bench = frontend()
    ask(bench, "once")
    (said,) = [said for said in bench.hush() if said[0] == "REQUEST" and said[1]["id"] != "~"]
    bench.hear("DISCONNECTERROR", code=503, message="this broker is joining")
    bench.hear("ERROR", id=said[1]["id"], code=503, message="this broker is joining", unrun=True)
    assert not bench.take(CallFailed)
    bench.reopen()
    assert requests(bench) == ["once"]


def test_silence_counts_from_the_question() -> None:
    """Calls were started and nobody looked for a long time: the answer may be waiting in the socket."""
    bench = up(frontend())
    ask(bench, "slow", timeout=600)
    bench.hush()
    bench.mono += 60.0
    bench.act("tick")
    assert bench.session.connection.state == UP
    assert [said[1]["id"] for said in bench.hush()] == ["~"]
    bench.pass_time(2.1 + RECHECK_SECONDS)
    assert bench.session.connection.state == DOWN


def test_a_broker_that_does_not_answer_pings_is_given_up_after_three_intervals() -> None:
    bench = up(frontend())
    ask(bench, "slow", timeout=600)
    bench.pass_time(2.9)
    assert bench.session.connection.state == UP
    bench.pass_time(0.2 + RECHECK_SECONDS)
    assert bench.session.connection.state != UP


def test_409_fails_everything_at_once_and_what_comes_after_it() -> None:
    bench = up(frontend())
    ask(bench, "call")
    bench.act("manage", {"command": "status"}, b"", 30.0, "command")
    bench.hear("DISCONNECTERROR", code=409, message="taken")
    ask(bench, "later")
    bench.act("manage", {"command": "status"}, b"", 30.0, "later command")
    failed = bench.take(CallFailed)
    assert {one.tag for one in failed} == {"call", "command", "later", "later command"}
    assert {(one.code, one.message) for one in failed} == {(409, "taken")}


def test_after_a_long_silence_it_introduces_itself_again() -> None:
    bench = up(frontend())
    bench.mono += 31
    ask(bench, "first")
    assert bench.words == ["CHECKCONFIG", "REQUEST"]


def test_a_management_command_waits_for_a_line_and_is_sent_once() -> None:
    bench = up(frontend())
    bench.act("closed", "the cable")
    bench.act("manage", {"command": "status"}, b"", 30.0, "command")
    assert bench.hush() == []
    bench.reopen()
    assert "MANAGEMENTREQ" in [said[0] for said in bench.hush()]
    back(bench, "b2")
    assert "MANAGEMENTREQ" not in [said[0] for said in bench.hush()]


def redirected(bench: Bench) -> Bench:
    """Its broker drains: it goes to another one."""
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"frontend": OTHER}, after=0.0)
    bench.pass_time(0)
    assert bench.opened[-1] == OTHER
    return up(bench, "b2")


def test_a_command_goes_back_to_the_broker_that_the_user_named() -> None:
    bench = redirected(up(frontend()))
    bench.act("manage", {"command": "enable"}, b"", 30.0, "command")
    assert "MANAGEMENTREQ" not in bench.words, "it may carry a token"
    bench.pass_time(0)
    assert bench.opened == [PLACE, OTHER, PLACE]
    assert bench.words.count("MANAGEMENTREQ") == 1
    bench.ack()
    assert bench.words.count("MANAGEMENTREQ") == 1


def test_a_command_during_a_move_goes_back_too_and_once_only() -> None:
    bench = up(frontend())
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"frontend": OTHER}, after=0.0)
    bench.pass_time(0)
    bench.act("manage", {"command": "enable"}, b"", 300.0, "command")
    up(bench, "b2")
    bench.pass_time(0)
    assert bench.opened == [PLACE, OTHER, PLACE]
    bench.act("closed", "refused")
    bench.reopen()
    assert bench.opened[-1] == OTHER
    up(bench, "b2")
    bench.pass_time(1)
    assert bench.opened[-1] == OTHER, "calls are served there meanwhile"


def test_a_command_waits_for_calls_that_are_under_way_where_it_is() -> None:
    bench = redirected(up(frontend()))
    ask(bench, "first")
    bench.act("manage", {"command": "enable"}, b"", 30.0, "command")
    bench.pass_time(1)
    assert bench.opened[-1] == OTHER
    [id_] = [said[1]["id"] for said in bench.hush() if said[0] == "REQUEST" and said[1]["id"] != "~"]
    bench.hear("REPLY", b"done", id=id_)
    bench.pass_time(0)
    assert bench.opened[-1] == PLACE


def test_a_service_without_a_name_ends_too() -> None:
    bench = frontend()
    bench.act("request", "", [], 1.0, False, "nameless")
    bench.pass_time(3.0)
    assert [one.tag for one in bench.take(CallFailed)] == ["nameless"]


def backend() -> Bench:
    bench = Bench(BackendSession([PLACE], "me", ["a"], 9, random.Random(3)))
    bench.act("start")
    bench.ack()
    bench.ready_ok()
    bench.news.clear()
    bench.hush()
    for number in range(3):
        bench.hear("REQUEST", b"", service="a", id=f"r{number}", timeout=9)
    return bench


def holds_after_reconnect(bench: Bench) -> list[str]:
    bench.act("closed", "the cable")
    bench.reopen()
    bench.ack()
    ready = bench.hush()[-1]
    assert ready[0] == "READY"
    bench.ready_ok()
    return [id_ for id_, _ in ready[1].holds]


def test_answers_wait_for_the_line_in_order_and_are_held_until_they_are_said() -> None:
    bench = backend()
    assert len(bench.take(RequestReceived)) == 3
    bench.act("closed", "the cable")
    bench.act("reply", "r1", [b"one"])
    bench.act("error", "r0", 500, "zero")
    bench.hush()
    bench.reopen()
    bench.ack()
    assert [id_ for id_, _ in bench.hush()[-1][1].holds] == ["r0", "r1", "r2"]
    bench.ready_ok()
    assert bench.words == ["REPLY", "ERROR"]


def test_answers_that_never_left_are_held_and_said_again() -> None:
    bench = backend()
    bench.act("reply", "r0", [b"zero"])
    bench.act("reply", "r1", [b"one"])
    bench.session.unsent(bench.hush())
    assert holds_after_reconnect(bench) == ["r0", "r1", "r2"]
    assert bench.said == [("REPLY", {"id": "r0"}, b"zero"), ("REPLY", {"id": "r1"}, b"one")]


def test_an_answer_that_left_is_not_held_any_more() -> None:
    bench = backend()
    bench.act("reply", "r0", [b"zero"])
    assert holds_after_reconnect(bench) == ["r1", "r2"]
    assert bench.said == []


def test_an_answer_whose_parts_went_before_is_never_finished_on_another_line() -> None:
    bench = backend()
    bench.act("partial", "r0", [b"part"])
    bench.act("partial", "r1", [b"part"])
    bench.hush()
    bench.act("reply", "r1", [b"end"])
    bench.session.unsent(bench.hush())
    assert holds_after_reconnect(bench) == ["r2"], "nobody knows which of the parts arrived"
    assert bench.said == []


class EveryCallEnds(RuleBasedStateMachine):
    """Whatever the broker, the network and the caller do, each call ends exactly once, and in time."""

    @initialize(seed=st.integers(0, 1_000), patience=st.sampled_from([None, 0.5, 5.0]))
    def begin(self, seed: int, patience: float | None) -> None:
        self.bench = Bench(FrontendSession([PLACE], None, random.Random(seed), patience))
        self.bench.act("start")
        self.ends: dict[int, float] = {}
        self.may_repeat: dict[int, bool] = {}
        self.ended: dict[int, str] = {}
        self.spoke: set[int] = set()
        self.sent: dict[int, int] = {}
        self.sent_on: dict[int, int] = {}
        self.ids: dict[Any, int] = {}
        self.heard_on = 0
        self.boot = 0

    @rule(timeout=st.floats(0.01, 40.0), retry=st.booleans())
    def ask(self, timeout: float, retry: bool) -> None:
        tag = len(self.ends)
        self.ends[tag] = self.bench.mono + timeout + GRACE_SECONDS
        self.may_repeat[tag] = retry
        self.bench.act("request", "s", [b"%d" % tag], timeout, retry, tag)
        self.look()

    @rule(timeout=st.floats(0.01, 40.0))
    def manage(self, timeout: float) -> None:
        tag = len(self.ends)
        self.ends[tag] = self.bench.mono + timeout + GRACE_SECONDS
        self.may_repeat[tag] = False
        self.bench.act("manage", {"command": "status"}, b"%d" % tag, timeout, tag)
        self.look()

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.bench.pass_time(seconds)
        self.look()

    @rule(seconds=st.floats(0.0, 100.0))
    def nobody_looks(self, seconds: float) -> None:
        self.bench.mono += seconds
        self.bench.act("tick")
        self.look()

    @rule()
    def breaks(self) -> None:
        self.bench.act("closed", "the cable")
        self.look()

    @precondition(lambda self: self.bench.open_now and self.heard_on != len(self.bench.opened))
    @rule()
    def was_never_there(self) -> None:
        self.bench.act("closed", "refused")
        self.bench.session.never_connected()
        for tag, number in self.sent_on.items():
            if number == len(self.bench.opened):
                self.sent[tag] -= 1
        self.look()

    @rule(version=st.integers(1, 5))
    def acknowledges(self, version: int) -> None:
        self.heard_on = len(self.bench.opened)
        self.bench.ack(version=version)
        self.look()

    @rule(restarted=st.booleans())
    def pongs(self, restarted: bool) -> None:
        self.boot += restarted
        self.heard_on = len(self.bench.opened)
        self.bench.pong(f"boot{self.boot}")
        self.look()

    @rule(code=st.sampled_from([403, 425, 503]))
    def refuses(self, code: int) -> None:
        self.hear("DISCONNECTERROR", code=code, message="no")
        self.look()

    @rule(after=st.floats(0, 100))
    def sends_elsewhere(self, after: float) -> None:
        self.hear("CHANGEBROKER", broker="b", endpoints={"frontend": "tcp://127.0.0.1:1"}, after=after)
        self.look()

    @rule()
    def forces(self) -> None:
        self.hear("FORCENEGOTIATE", reason="who?")
        self.look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), how=st.sampled_from(["REPLY", "PARTIAL", "ERROR", "MANAGEMENTREP"]))
    def answers(self, data: st.DataObject, how: str) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.ids)))
        said: dict[str, Any] = {"id": id_}
        if how in ("ERROR", "MANAGEMENTREP"):
            said |= {"code": 500, "message": "failed"}
        self.hear(how, b"body", **said)
        self.look()

    @rule()
    def takes_over(self) -> None:
        if self.bench.mono > 400:
            self.hear("DISCONNECTERROR", code=409, message="taken")
            self.look()

    def hear(self, command: str, *bodies: bytes, **said: Any) -> None:
        self.heard_on = len(self.bench.opened)
        self.bench.hear(command, *bodies, **said)

    def look(self) -> None:
        """Take in what it said and told."""
        for command, said, *bodies in self.bench.hush():
            if command in ("REQUEST", "MANAGEMENTREQ") and said["id"] != "~":
                tag = int(bodies[0])
                self.ids[said["id"]] = tag
                assert tag not in self.ended, "asked after it had ended"
                self.sent[tag] = self.sent.get(tag, 0) + 1
                self.sent_on[tag] = len(self.bench.opened)
                assert self.sent[tag] == 1 or self.may_repeat[tag], "sent twice, though it may not run twice"
                assert self.sent[tag] == 1 or tag not in self.spoke, "sent again in the middle of its answer"
                if command == "REQUEST":
                    assert said["timeout"] > 0
        for one in self.bench.news:
            if isinstance(one, PartialReply):
                assert one.tag not in self.ended
                self.spoke.add(one.tag)
            elif isinstance(one, CallAnswered | CallFailed | ManagementAnswered):
                assert one.tag not in self.ended, "ended twice"
                self.ended[one.tag] = type(one).__name__
        self.bench.news.clear()

    @invariant()
    def every_end_comes_in_time(self) -> None:
        if not hasattr(self, "ends"):
            return
        late = [
            tag for tag, end in self.ends.items() if tag not in self.ended and self.bench.mono > end + GRAIN_SECONDS
        ]
        if late:
            # Only somebody who did not look may find them late, and the next look ends them.
            self.bench.act("tick")
            self.look()
            assert all(tag in self.ended for tag in late), late

    @invariant()
    def a_session_with_open_calls_has_a_deadline(self) -> None:
        if hasattr(self, "ends") and len(self.ended) < len(self.ends):
            assert self.bench.session.deadline() is not None
            assert self.bench.session.connection.state != ENDED

    def teardown(self) -> None:
        if hasattr(self, "ends"):
            self.bench.pass_time(60.0)
            self.look()
            assert sorted(self.ended) == sorted(self.ends), "every call ends"


TestEveryCallEnds = EveryCallEnds.TestCase
TestEveryCallEnds.settings = examples(150, stateful_step_count=40)


@pytest.mark.parametrize("seed", range(3))
def test_ids_do_not_repeat_between_clients(seed: int) -> None:
    first, second = frontend(), Bench(FrontendSession([PLACE], None, random.Random(seed + 100)))
    second.act("start")
    for bench in (first, second):
        bench.hush()
        ask(bench, "one")
    assert first.said[-1][1]["id"] != second.said[-1][1]["id"]
