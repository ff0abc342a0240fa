"""A network at work whose parts are killed one after another: what every caller is promised all the while."""

# Promise: CLIENT-2
from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import scale0
from scale0.transport.core.calls import GRACE_SECONDS
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.processes import background
from tests.fakes.waiting import until
from tests.processes.client import callers, handlers
from tests.processes.client.callers import AGAIN_TIMEOUT, ONCE_TIMEOUT, Caller
from tests.processes.client.net import client_of, offered, programs

pytestmark = pytest.mark.processes

INTERVAL_SECONDS = 0.5
LIVENESS = 3
DEAD_SECONDS = INTERVAL_SECONDS * (LIVENESS + 1) + 0.25
BACK_SECONDS = 3 * INTERVAL_SECONDS + 1 + 2 + 4
"""Three heartbeats, and the longest delays of the attempts that may fall into the time of a restart."""
SLACK_SECONDS = 0.5
"""For threads that wait for a core of a busy machine."""
SLOTS = 4
"""Of `again`, per worker."""
OTHER_FIRST = 1_000_000
"""The first number of the caller that is a program."""


def more(caller: Caller, calls: int = 50) -> None:
    """Both kinds of calls are answered again."""
    wanted = {service: caller.answered(service) + calls for service in caller.outcomes}
    until(lambda: all(caller.answered(service) >= count for service, count in wanted.items()), "calls are answered")


def slots_of(net: scale0.Client) -> int:
    return int(offered(net).get("again", {}).get("slots", 0))


def took(condition: object, what: str, seconds: float) -> float:
    begin = time.monotonic()
    until(condition, what, seconds)  # type: ignore[arg-type]
    return time.monotonic() - begin


def test_whatever_is_killed_every_call_ends_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured: dict[str, float] = {}
    with (
        broker_process(tmp_path / "broker", default_heartbeat_interval=INTERVAL_SECONDS, frontend_idle=2) as broker,
        programs(broker.endpoints["backend"], tmp_path, "w1", "w2", "w3") as workers,
        background(
            [sys.executable, callers.__file__, broker.endpoints["frontend"], str(OTHER_FIRST)], tmp_path
        ) as other,
        client_of(broker, timeout=5) as look,
    ):
        caller = Caller(broker.endpoints["frontend"], 0)
        caller.start()
        try:
            other.wait_for("calling")
            more(caller)
            full = slots_of(look)

            workers[0].kill9()
            measured["dead worker out"] = took(lambda: slots_of(look) < full, "its slots are gone", 2 * DEAD_SECONDS)
            assert slots_of(look) == full * 2 // 3
            more(caller)

            broker.kill9()
            broker.restart()
            begin = time.monotonic()
            back = slots_after_restart(broker, full * 2 // 3)
            measured["workers back"] = back
            more(caller, 1)
            measured["callers back"] = time.monotonic() - begin
            more(caller)

            other.process.kill()
            other.wait(10)
            more(caller)
            until(lambda: len([row for row in look.clients() if row["role"] == "frontend"]) == 2, "it is forgotten")

            workers[1].kill9()
            broker.kill9()
            broker.restart()
            measured["both at once"] = slots_after_restart(broker, full // 3)
            more(caller)
        finally:
            caller.finish()
        # No slot is busy for good, and nothing waits.
        until(lambda: all(row["busy"] == row["waiting"] == 0 for row in look.services()), "all slots are free", 15)
    check_outcomes(caller)
    check_executions(caller, tmp_path)
    with capsys.disabled():
        counts = {name: dict(Counter(code for _, code, _ in rows)) for name, rows in caller.outcomes.items()}
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in measured.items())
        sys.stdout.write(f"\n  {times}; outcomes {counts}\n")
    assert measured["dead worker out"] <= DEAD_SECONDS + SLACK_SECONDS
    assert measured["workers back"] <= BACK_SECONDS
    assert measured["callers back"] <= BACK_SECONDS + SLACK_SECONDS


def test_a_worker_that_stands_still_is_out_in_time_and_comes_back_by_itself(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "broker", default_heartbeat_interval=INTERVAL_SECONDS) as broker,
        programs(broker.endpoints["backend"], tmp_path, "still", "lively") as [still, lively],
        client_of(broker, timeout=5) as look,
    ):
        full = slots_of(look)
        still.process.send_signal(signal.SIGSTOP)
        gone = took(lambda: slots_of(look) == full // 2, "its slots are gone", 2 * DEAD_SECONDS)
        assert INTERVAL_SECONDS * (LIVENESS - 1) <= gone <= DEAD_SECONDS + SLACK_SECONDS, gone
        still.process.send_signal(signal.SIGCONT)
        took(lambda: slots_of(look) == full, "it is back", BACK_SECONDS)
        assert still.process.poll() is lively.process.poll() is None
        assert sorted(look.map("again", range(20))) == list(range(20))


def slots_after_restart(broker: BrokerProcess, wanted: int) -> float:
    """How long until all workers that live are back, seen by somebody new."""
    with client_of(broker, timeout=5) as fresh:
        return took(lambda: slots_of(fresh) == wanted, f"{wanted} slots are back", 2 * BACK_SECONDS)


def check_outcomes(caller: Caller) -> None:
    for service, timeout in (("once", ONCE_TIMEOUT), ("again", AGAIN_TIMEOUT)):
        late = [row for row in caller.outcomes[service] if row[2] > timeout + GRACE_SECONDS + SLACK_SECONDS]
        assert not late, f"{service}: these took too long: {late}"
        codes = Counter(code for _, code, _ in caller.outcomes[service])
        wrong = set(codes) - {200, 404, 502, 504, 599}
        assert not wrong, f"{service}: {codes}"
    not_answered = [row for row in caller.outcomes["again"] if row[1] != 200]
    assert not not_answered, f"what may run twice is answered: {not_answered}"


def check_executions(caller: Caller, folder: Path) -> None:
    runs = Counter(int(line.split()[0]) for line in handlers.notes(folder, "done"))
    twice = {number: count for number, count in runs.items() if count > 1}
    assert not twice, f"these ran more than once: {twice}"
    unrun = [number for number, code, _ in caller.outcomes["once"] if code == 200 and number not in runs]
    assert not unrun, f"answered, but never run: {unrun}"
    never = [number for number, code, _ in caller.outcomes["once"] if code == 404 and number in runs]
    assert not never, f"answered with 404, but it ran: {never}"
