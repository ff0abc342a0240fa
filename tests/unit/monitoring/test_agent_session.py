"""An agent's session: how it connects, which messages it may send when, and that no report is lost."""

from __future__ import annotations

import random

import pytest

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import (
    AgentEffects,
    Delivered,
    HelenLost,
    Logged,
    Redirected,
    ReloadNow,
    RunCheck,
    SessionRefused,
    TakeSchedule,
    Undelivered,
)
from scale0.monitoring.agent.core.session import (
    ACCEPTED,
    DOWN,
    ENDED,
    FIRST_BACKOFF_SECONDS,
    GREETED,
    MAX_ANSWER_SECONDS,
    MAX_ANSWERED,
    MAX_BACKOFF_SECONDS,
    MAX_UNACKED_BYTES,
    OPEN_SECONDS,
    OPENING,
    REPORT_WINDOW,
    STEADY_SECONDS,
    AgentSession,
    parse_address,
)
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_INT, AgentMessage
from scale0.monitoring.protocol.results import read_result
from tests.fakes.simulated_agent import HELEN, OTHER_HELEN, WALL, SimulatedAgent


def test_an_agent_connects_and_sends_hello_of_version_2(new_agent: SimulatedAgent):
    assert new_agent.opens == []
    new_agent.connect()
    assert new_agent.opens[0][1] == HELEN
    assert new_agent.sent == [messages.Hello(2, "1.0")]
    assert new_agent.session.state == GREETED
    assert new_agent.session.deadline() == new_agent.mono + OPEN_SECONDS


# Promise: AGENT-13
def test_even_the_first_attempt_waits_a_random_time():
    waits = []
    for seed in range(300):
        agent = SimulatedAgent(seed=seed)
        agent.connect()
        waits.append(agent.opens[0][0] - 1_000.0)
    assert 0 <= min(waits) < 0.05
    assert 0.95 < max(waits) <= FIRST_BACKOFF_SECONDS
    assert 0.4 < sum(waits) / len(waits) < 0.6


def fail_often(agent: SimulatedAgent, times: int) -> list[float]:
    """The waits before each attempt; none of them comes through."""
    waits = []
    for _ in range(times):
        begin = agent.mono
        agent.open_next()
        waits.append(agent.opens[-1][0] - begin)
        agent.lose_connection("refused")
    return waits


# Promise: AGENT-13
def test_the_backoff_doubles_up_to_its_limit_with_full_jitter():
    every = [fail_often(SimulatedAgent(seed=seed), 10) for seed in range(200)]
    for number, waits in enumerate(zip(*every, strict=True)):
        ceiling = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**number)
        assert max(waits) <= ceiling <= 60
        assert max(waits) > 0.9 * ceiling
        assert min(waits) < 0.1 * ceiling


def test_a_handshake_that_never_ends_is_given_up(new_agent: SimulatedAgent):
    new_agent.open_next()
    new_agent.pass_time(OPEN_SECONDS - 0.1)
    assert new_agent.session.state == OPENING
    new_agent.pass_time(0.2)
    assert new_agent.closes == 1
    assert new_agent.session.state == DOWN
    assert isinstance(new_agent.updates[-1], HelenLost)


def test_a_steady_connection_makes_the_next_backoff_short_again(new_agent: SimulatedAgent):
    fail_often(new_agent, 8)
    new_agent.accept()
    new_agent.receive(messages.Ping(1))
    new_agent.pass_time(STEADY_SECONDS)
    new_agent.lose_connection()
    begin = new_agent.mono
    new_agent.connect()
    assert new_agent.opens[-1][0] - begin <= FIRST_BACKOFF_SECONDS


def test_short_connections_lengthen_the_backoff(new_agent: SimulatedAgent):
    # Two machines with one certificate put each other out all the time: that must not be a storm.
    waits = []
    for _ in range(200):
        begin = new_agent.mono
        new_agent.accept()
        waits.append(new_agent.opens[-1][0] - begin)
        new_agent.receive(messages.Error("somebody else has your name"))
    assert sum(waits[10:]) / 190 > MAX_BACKOFF_SECONDS / 3
    assert max(waits) <= MAX_BACKOFF_SECONDS


# Promise: AGENT-13
def test_several_places_are_tried_in_turn_and_a_round_of_them_lengthens_the_backoff():
    agent = SimulatedAgent(HELEN, OTHER_HELEN)
    waits = fail_often(agent, 6)
    assert [place for _, place in agent.opens] == 3 * [HELEN, OTHER_HELEN]
    assert [wait <= ceiling for wait, ceiling in zip(waits, [1, 1, 2, 2, 4, 4], strict=True)] == 6 * [True]


# Promise: AGENT-13
def test_however_long_it_was_refused_every_place_is_tried_within_one_long_wait():
    agent = SimulatedAgent(HELEN, OTHER_HELEN)
    waits = fail_often(agent, 60)
    assert max(waits[1::2]) <= FIRST_BACKOFF_SECONDS
    assert max(waits[::2]) > MAX_BACKOFF_SECONDS / 2


# Promise: AGENT-13
def test_a_redirect_is_followed_soon_however_long_it_was_refused_before(new_agent: SimulatedAgent):
    fail_often(new_agent, 12)
    new_agent.connect()
    begin = new_agent.mono
    new_agent.receive(messages.Redirect("helen-2.example:4166"))
    new_agent.connect()
    assert new_agent.opens[-1][0] - begin <= FIRST_BACKOFF_SECONDS


def test_an_agent_without_a_place_is_a_mistake():
    with pytest.raises(ValueError):
        AgentSession((), "1.0", random.Random(1))


# Promise: AGENT-3
def test_a_helen_of_version_1_gets_answers_and_nothing_else(new_agent: SimulatedAgent):
    new_agent.connect()
    (run,) = new_agent.receive(messages.Check("load", 7, b'{"a": 1}'))
    new_agent.pass_time(10_000)
    assert isinstance(run, RunCheck)
    assert (run.name, run.args) == ("load", b'{"a": 1}')
    new_agent.step("finished", run.run_id, b'{"state": "ok"}')
    assert new_agent.session.room == 0
    assert new_agent.step("offer", "load", b"{}", "token") == [Undelivered(("token",))]
    assert new_agent.receive(messages.Reload()) == [ReloadNow()]
    new_agent.pass_time(10_000)
    assert new_agent.sent == [messages.Hello(2, "1.0"), messages.Result(7, "load", b'{"state": "ok"}')]
    assert new_agent.closes == 0


# Promise: AGENT-13
def test_a_helen_that_does_not_answer_hello_is_left_later_each_time(new_agent: SimulatedAgent):
    waits = []
    for _ in range(12):
        new_agent.connect()
        connected = new_agent.mono
        while new_agent.session.state == GREETED:
            new_agent.pass_time(1.0)
        waits.append(new_agent.mono - connected)
    # With a Helen of version 1, which may be silent for hours, an agent reconnects once in an hour at most.
    assert waits == pytest.approx([min(OPEN_SECONDS * 2**number, MAX_ANSWER_SECONDS) for number in range(12)], abs=1.0)
    new_agent.connect()
    new_agent.receive(messages.Accepted(10))
    new_agent.lose_connection()
    new_agent.connect()
    assert new_agent.session.deadline() == new_agent.mono + OPEN_SECONDS


# Promise: AGENT-3
@pytest.mark.parametrize(
    "message",
    [messages.Ping(1), messages.Pong(1), messages.Schedule(1, b"{}"), messages.Ack(0), messages.File(1, "a", b"")],
)
def test_version_2_before_accepted_is_noted_and_not_answered(new_agent: SimulatedAgent, message):
    new_agent.connect()
    (updates,) = new_agent.receive(message)
    assert isinstance(updates, Logged)
    assert new_agent.sent == [messages.Hello(2, "1.0")]
    assert new_agent.session.state == GREETED


# Promise: AGENT-4
def test_results_come_in_any_order(agent: SimulatedAgent):
    runs = agent.receive(*(messages.Check("load", number, b"") for number in range(1, 11)))
    for run in reversed(runs):
        agent.step("finished", run.run_id, b"%d" % run.run_id)
    assert [message.message_id for message in agent.sent[1:]] == list(range(10, 0, -1))


# Promise: AGENT-4
def test_one_message_id_is_run_once_and_answered_once(agent: SimulatedAgent):
    (run,) = agent.receive(messages.Check("load", 1, b""))
    assert isinstance(agent.receive(messages.Check("load", 1, b""))[0], Logged)
    agent.step("finished", run.run_id, b"{}")
    agent.step("finished", run.run_id, b"{}")
    assert isinstance(agent.receive(messages.Check("load", 1, b""))[0], Logged)
    assert agent.sent[1:] == [messages.Result(1, "load", b"{}")]


def test_message_ids_start_again_with_each_connection(agent: SimulatedAgent):
    (run,) = agent.receive(messages.Check("load", 1, b""))
    agent.step("finished", run.run_id, b"{}")
    agent.lose_connection()
    agent.accept()
    (again,) = agent.receive(messages.Check("load", 1, b""))
    agent.step("finished", again.run_id, b"{}")
    assert agent.sent[1:] == [messages.Result(1, "load", b"{}")]


def test_what_is_remembered_of_answered_checks_is_bounded(agent: SimulatedAgent):
    for number in range(1, MAX_ANSWERED + 100):
        (run,) = agent.receive(messages.Check("load", number, b""))
        agent.step("finished", run.run_id, b"{}")
    assert len(agent.session._answered) == MAX_ANSWERED
    assert not agent.session._runs
    assert not agent.session._open_ids


# Promise: AGENT-4
def test_an_answer_never_goes_out_on_another_connection(agent: SimulatedAgent):
    (old,) = agent.receive(messages.Check("slow", 1, b""))
    agent.lose_connection()
    agent.step("finished", old.run_id, b"old")
    agent.accept()
    (new,) = agent.receive(messages.Check("slow", 1, b""))
    agent.step("finished", old.run_id, b"old")
    assert agent.sent == [messages.Hello(2, "1.0")]
    agent.step("finished", new.run_id, b"new")
    assert agent.sent[1:] == [messages.Result(1, "slow", b"new")]


def test_a_result_that_is_too_big_is_answered_with_the_reason(agent: SimulatedAgent):
    (run,) = agent.receive(messages.Check("load", 1, b""))
    agent.step("finished", run.run_id, b"x" * (MAX_BLOB_BYTES + 1))
    result = agent.sent[-1]
    assert result.message_id == 1
    finding = read_result(result.body).finding
    assert finding.state == "unknown"
    assert "1048577" in finding.message


def test_a_check_whose_answer_could_not_be_written_is_noted(agent: SimulatedAgent):
    (updates,) = agent.receive(messages.Check("x" * 8_150, 1, b""))
    assert isinstance(updates, Logged)
    (run,) = agent.receive(messages.Check("x" * 8_128, MAX_INT, b""))
    agent.step("finished", run.run_id, b"x" * MAX_BLOB_BYTES)
    assert agent.sent[-1].message_id == MAX_INT


def test_odd_names_are_given_back_as_they_came(agent: SimulatedAgent):
    for number, name in enumerate(["größe", "a\rb", "\x00", "\u2028", "𝄞", "\r"]):
        (run,) = agent.receive(messages.Check(name, number, b""))
        agent.step("finished", run.run_id, b"")
        assert agent.sent[-1] == messages.Result(number, name, b"")


def test_a_schedule_is_handed_on(agent: SimulatedAgent):
    assert agent.receive(messages.Schedule(1, b'{"checks": []}')) == [TakeSchedule(b'{"checks": []}')]


def test_what_comes_later_is_noted_and_ignored(agent: SimulatedAgent):
    later: list[AgentMessage] = [
        messages.File(1, "a", b""),
        messages.Upgrade(1, b"{}"),
        messages.Open(1, b"{}"),
        messages.Data(1, b"x"),
    ]
    later += [messages.Resize(1, 80, 25), messages.Close(1, 0), messages.Enrolled(b"PEM")]
    updates = agent.receive(*later)
    assert [type(one) for one in updates] == 7 * [Logged]
    assert isinstance(agent.step("received", b"dance 1 2\n")[0], Logged)
    assert agent.session.state == ACCEPTED
    assert agent.sent == [messages.Hello(2, "1.0")]


# Promise: AGENT-13
def test_an_error_is_reported_and_ends_the_connection(agent: SimulatedAgent):
    updates = agent.receive(messages.Ping(1), messages.Error("you did wrong"), messages.Check("load", 1, b""))
    assert updates[0] == SessionRefused("you did wrong")
    assert isinstance(updates[1], HelenLost)
    assert len(updates) == 2
    assert agent.closes == 1
    assert agent.session.state == DOWN
    agent.connect()
    assert agent.session.state == GREETED


@pytest.mark.parametrize("data", [b"ack x\n", b"check load 1\n", b"x" * 10_000, b"\xff\n", b"schedule 1 1048577\n"])
def test_a_helen_that_is_not_understood_is_left(agent: SimulatedAgent, data):
    updates = agent.step("received", data)
    assert isinstance(updates[-1], HelenLost)
    assert agent.closes == 1


def test_bytes_of_a_broken_connection_are_not_mixed_with_the_next(agent: SimulatedAgent):
    agent.step("received", b"check load 1 100\nhalf a blob")
    agent.lose_connection()
    agent.accept()
    assert agent.receive(messages.Schedule(1, b"{}")) == [TakeSchedule(b"{}")]


def test_messages_cut_into_bytes_mean_the_same(agent: SimulatedAgent):
    for number in encode(messages.Check("load", 5, b"{}")) + encode(messages.Ping(3)):
        agent.step("received", bytes([number]))
    assert agent.updates[-1] == RunCheck(1, "load", b"{}")
    assert agent.sent[1:] == [messages.Pong(3)]


def test_a_ping_is_answered(agent: SimulatedAgent):
    agent.receive(messages.Ping(MAX_INT), messages.Pong(4))
    assert agent.sent[1:] == [messages.Pong(MAX_INT)]


def test_an_idle_agent_pings_after_each_heartbeat(new_agent: SimulatedAgent):
    new_agent.accept(10)
    for number in range(1, 6):
        new_agent.pass_time(9.99)
        assert len(new_agent.sent) == number
        new_agent.pass_time(0.011)
        assert new_agent.sent[-1] == messages.Ping(number)
        new_agent.receive(messages.Pong(number))
    assert new_agent.closes == 0


def test_an_agent_that_speaks_needs_no_ping(new_agent: SimulatedAgent):
    new_agent.accept(10)
    for token in range(20):
        new_agent.pass_time(9)
        new_agent.step("offer", "load", b"{}", token)
        new_agent.receive(messages.Ack(token + 1))
    assert not any(isinstance(message, messages.Ping) for message in new_agent.sent)


# Promise: AGENT-12
def test_a_silent_helen_is_given_up_after_three_heartbeats_and_never_before(new_agent: SimulatedAgent):
    new_agent.accept(10)
    new_agent.pass_time(29.9)
    assert new_agent.closes == 0
    new_agent.pass_time(0.2)
    assert new_agent.closes == 1
    assert "silent" in new_agent.updates[-1].reason


def test_any_byte_of_helen_is_a_sign_of_life(new_agent: SimulatedAgent):
    new_agent.accept(10)
    new_agent.step("received", b"schedule 1 100\n")
    for _ in range(90):
        new_agent.pass_time(9)
        new_agent.step("received", b"x")
    assert new_agent.closes == 0


# Promise: AGENT-12
def test_an_agent_that_slept_gives_helen_her_time(new_agent: SimulatedAgent):
    new_agent.accept(10)
    new_agent.mono += 3_600
    new_agent.step("tick")
    assert new_agent.closes == 0
    assert isinstance(new_agent.sent[-1], messages.Ping)
    new_agent.pass_time(29.9)
    assert new_agent.closes == 0
    new_agent.pass_time(0.2)
    assert new_agent.closes == 1


def test_a_heartbeat_of_nothing_is_no_storm(new_agent: SimulatedAgent):
    new_agent.accept(0)
    new_agent.pass_time(2.9)
    assert len(new_agent.sent) == 3
    new_agent.lose_connection()
    new_agent.accept(MAX_INT)
    new_agent.pass_time(86_400)
    assert new_agent.closes == 0


# Promise: AGENT-12
def test_a_wall_clock_that_jumps_changes_nothing(new_agent: SimulatedAgent):
    new_agent.accept(10)
    for wall in (0.0, 4e9, -1.0, WALL):
        out = AgentEffects()
        new_agent.session.tick(Now(new_agent.mono, wall), out)
        assert (out.close, out.sends, out.updates) == (False, [], [])


def test_reports_are_numbered_and_delivered_by_cumulative_acks(agent: SimulatedAgent):
    for token in "abcde":
        assert agent.step("offer", f"check-{token}", token.encode(), token) == []
    assert agent.sent[1:] == [
        messages.Report(number, f"check-{token}", token.encode()) for number, token in enumerate("abcde", 1)
    ]
    assert agent.receive(messages.Ack(0)) == []
    assert agent.receive(messages.Ack(3)) == [Delivered(("a", "b", "c"))]
    assert agent.receive(messages.Ack(3), messages.Ack(1)) == []
    assert agent.receive(messages.Ack(5)) == [Delivered(("d", "e"))]
    assert agent.session.room == REPORT_WINDOW


# Promise: AGENT-7
def test_what_was_not_acknowledged_comes_back_and_is_numbered_again(agent: SimulatedAgent):
    for token in range(5):
        agent.step("offer", "load", b"%d" % token, token)
    agent.receive(messages.Ack(2))
    assert agent.lose_connection()[0] == Undelivered((2, 3, 4))
    assert agent.session.room == 0
    assert agent.step("offer", "load", b"2", 2) == [Undelivered((2,))]
    agent.accept()
    agent.step("offer", "load", b"2", 2)
    assert agent.sent[-1] == messages.Report(1, "load", b"2")
    assert agent.receive(messages.Ack(1)) == [Delivered((2,))]


def test_the_window_is_bounded_by_reports(agent: SimulatedAgent):
    for token in range(REPORT_WINDOW):
        assert agent.session.room == REPORT_WINDOW - token
        assert agent.step("offer", "load", b"{}", token) == []
    assert agent.session.room == 0
    assert agent.step("offer", "load", b"{}", "one more") == [Undelivered(("one more",))]
    assert len(agent.sent) == REPORT_WINDOW + 1
    agent.receive(messages.Ack(400))
    assert agent.session.room == 400
    agent.step("offer", "load", b"{}", "one more")
    assert agent.sent[-1].sequence == REPORT_WINDOW + 1


def test_the_window_is_bounded_by_bytes(agent: SimulatedAgent):
    big = b"x" * MAX_BLOB_BYTES
    sent = 0
    while agent.session.room > 0:
        agent.step("offer", "load", big, sent)
        sent += 1
    assert sent <= MAX_UNACKED_BYTES // MAX_BLOB_BYTES + 1
    # Who did not look is not turned away: the token would be back, and offered again, without end.
    assert agent.step("offer", "load", b"{}", sent) == []
    sent += 1
    agent.receive(messages.Ack(sent))
    assert agent.session.room == REPORT_WINDOW
    for token in range(sent):
        agent.step("offer", "load", big, token)
    assert agent.session.room == 0
    agent.lose_connection()
    agent.accept()
    assert agent.session.room == REPORT_WINDOW


@pytest.mark.parametrize("bad", [("two words", b"{}"), ("", b"{}"), ("a\n", b"{}"), ("a", b"x" * (MAX_BLOB_BYTES + 1))])
def test_a_report_that_can_never_be_sent_is_a_mistake_of_ours(agent: SimulatedAgent, bad):
    with pytest.raises(ValueError):
        agent.step("offer", *bad, "token")
    assert agent.step("offer", "load", b"{}", "next") == []
    assert agent.sent[-1] == messages.Report(1, "load", b"{}")
    assert agent.receive(messages.Ack(1)) == [Delivered(("next",))]


def test_an_ack_for_what_was_never_sent_ends_the_connection(agent: SimulatedAgent):
    agent.step("offer", "load", b"{}", "a")
    updates = agent.receive(messages.Ack(2))
    assert updates[0] == Undelivered(("a",))
    assert isinstance(updates[1], HelenLost)
    assert agent.closes == 1


def test_numbers_that_are_used_up_start_again_with_a_connection(agent: SimulatedAgent):
    agent.session._sequence = MAX_INT - 1
    agent.step("offer", "load", b"{}", "last")
    assert agent.sent[-1].sequence == MAX_INT
    updates = agent.step("offer", "load", b"{}", "over")
    assert [one.tokens for one in updates if isinstance(one, Undelivered)] == [("last",), ("over",)]
    agent.accept()
    agent.step("offer", "load", b"{}", "last")
    assert agent.sent[-1].sequence == 1


# Promise: AGENT-13
def test_a_redirect_is_followed(new_agent: SimulatedAgent):
    new_agent.connect()
    assert new_agent.receive(messages.Redirect("helen-2.example:4166")) == [Redirected(OTHER_HELEN)]
    assert new_agent.closes == 1
    begin = new_agent.mono
    new_agent.accept()
    assert new_agent.opens[-1][1] == OTHER_HELEN
    assert new_agent.opens[-1][0] - begin <= FIRST_BACKOFF_SECONDS
    # When that one is gone, it is the list's turn again, and a redirect is followed again.
    new_agent.pass_time(10)
    new_agent.lose_connection()
    new_agent.connect()
    assert new_agent.opens[-1][1] == HELEN
    new_agent.receive(messages.Redirect("helen-2.example:4166"))
    new_agent.connect()
    assert new_agent.opens[-1][1] == OTHER_HELEN


def test_a_redirect_that_leads_nowhere_leads_back_to_the_list():
    agent = SimulatedAgent(HELEN, ("helen-3.example", 1))
    agent.connect()
    agent.receive(messages.Redirect("helen-2.example:4166"))
    agent.open_next()
    assert agent.opens[-1][1] == OTHER_HELEN
    agent.lose_connection("refused")
    agent.connect()
    assert agent.opens[-1][1] == ("helen-3.example", 1)


# Promise: AGENT-13
def test_a_second_redirect_is_not_followed_and_no_storm(new_agent: SimulatedAgent):
    begin = new_agent.mono
    for _ in range(40):
        new_agent.connect()
        there = new_agent.opens[-1][1]
        new_agent.receive(messages.Redirect("helen-2.example:4166" if there == HELEN else "helen.example:4166"))
    assert [place for _, place in new_agent.opens] == 20 * [HELEN, OTHER_HELEN]
    assert new_agent.mono - begin > 5 * MAX_BACKOFF_SECONDS


def test_reports_come_back_when_helen_sends_the_agent_away(agent: SimulatedAgent):
    agent.step("offer", "load", b"{}", "a")
    assert agent.receive(messages.Redirect("helen-2.example:4166")) == [Redirected(OTHER_HELEN), Undelivered(("a",))]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host:1", ("host", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65_535)),
        ("[::1]:4166", ("::1", 4166)),
        ("[fe80::1%eth0]:4166", ("fe80::1%eth0", 4166)),
        *((bad, None) for bad in ("host", "host:", ":1", "", "::1:4166", "[]:1", "[::1]", "host:0", "host:65536")),
        *((bad, None) for bad in ("host:٣", "host:+5", "host:-1", "host:1_0", "host: 1", "host:000001", "host:1e3")),
        *(
            (bad, None)
            for bad in ("http://host:1", "a/b:1", "me@host:1", "a b:1", "a\x00:1", "a\n:1", "[a]b:1", "a]:1")
        ),
    ],
)
def test_a_place_is_a_host_and_a_port(text, place):
    assert parse_address(text) == place


def test_a_redirect_to_no_place_is_a_failure(agent: SimulatedAgent):
    updates = agent.step("received", b"redirect nowhere\n")
    assert isinstance(updates[-1], HelenLost)
    assert agent.closes == 1
    agent.connect()
    assert agent.opens[-1][1] == HELEN


def test_an_agent_that_ends_gives_all_back_and_does_nothing_more(agent: SimulatedAgent):
    agent.step("offer", "load", b"{}", "a")
    assert agent.step("end") == [Undelivered(("a",))]
    assert agent.closes == 1
    assert agent.session.state == ENDED
    assert agent.session.deadline() is None
    for what, *values in (("start",), ("end",), ("tick",), ("opened",), ("received", b"ping 1\n"), ("lost", "x")):
        assert agent.step(what, *values) == []
    assert agent.step("offer", "load", b"{}", "b") == [Undelivered(("b",))]
    assert len(agent.opens) == 1


def test_an_agent_that_ends_between_connections_closes_nothing(new_agent: SimulatedAgent):
    new_agent.step("end")
    assert new_agent.closes == 0
    new_agent.pass_time(1_000)
    assert new_agent.opens == []
