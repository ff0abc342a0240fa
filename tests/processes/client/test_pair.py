"""A pair of real brokers: the active one is killed under load, its standby serves, and gives way when it is back.

Promise: NEGO-6
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.shell import Shell
from tests.fakes.waiting import until
from tests.processes.client.handlers import paint
from tests.processes.client.net import Together, client_of, is_there, states_of, working

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

SERVED_SECONDS = 5.0
"""From the active broker's death until its clients are served by the standby, at a heartbeat of one second."""
KILLS = 5
CALLERS = 4


@contextmanager
def pair(folder: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """`a` is active, `s` stands by for it."""
    with broker_process(folder / "a", identity="a", group="east", config_service=True) as active:
        peers = [active.endpoints["peer"]]
        own = {"identity": "s", "group": "east", "state": "joining", "peers": peers, "standby_for": "a"}
        with broker_process(folder / "s", **own) as standby:
            until(lambda: state_of(standby) == "standby", "it stands by")
            until(lambda: state_of(active, of="s") == "standby", "the active one knows it")
            yield active, standby
            for broker in (active, standby):
                broker.assert_no_traceback()


def state_of(broker: BrokerProcess, of: str = "") -> str:
    return states_of(broker).get(of or broker.config["identity"], "")


class Callers:
    """Programs that call on and on; nothing that they asked for may fail."""

    def __init__(self, active: BrokerProcess) -> None:
        self._active = active
        self._stop = threading.Event()
        self._together = Together()
        self.done = [0] * CALLERS
        self.longest = [0.0] * CALLERS
        self.nets = [client_of(active, timeout=20) for _ in range(CALLERS)]

    def __enter__(self) -> Callers:
        for number in range(CALLERS):
            self._together.start(self._call, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        try:
            self._together.join(30)
        finally:
            for net in self.nets:
                net.close()

    def all_know_others(self) -> bool:
        return all(net._core.session.connection.addresses.has_others for net in self.nets)

    def all_at(self, name: str) -> bool:
        return all(net._core.session.connection.addresses.name == name for net in self.nets)

    def all_served(self, before: list[int]) -> bool:
        assert not self._together.faults, self._together.faults
        return all(now > then + 1 for now, then in zip(self.done, before, strict=True))

    def _call(self, number: int) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            assert self.nets[number].call("paint", "red", retry=True) == "it is red"
            self.longest[number] = max(self.longest[number], time.monotonic() - begun)
            self.done[number] += 1


def test_the_active_broker_is_killed_under_load_and_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    with (
        pair(tmp_path) as (active, standby),
        working(active, paint, identity="painter", slots=8),
        Callers(active) as callers,
    ):
        for _ in range(KILLS):
            until(callers.all_know_others, "they know where to turn to")
            until(lambda: is_there(active, "painter") and callers.all_at("a"), "all are at home")
            before = list(callers.done)
            until(partial(callers.all_served, before), "all are served")
            active.kill9()
            before = list(callers.done)
            until(partial(callers.all_served, before), "all are served again")
            assert state_of(standby) == "active"
            assert is_there(standby, "painter")
            active.restart()
            until(lambda: state_of(standby) == "standby", "it gives way")
        until(lambda: is_there(active, "painter") and callers.all_at("a"), "all are at home")
    assert max(callers.longest) <= SERVED_SECONDS, callers.longest


def test_an_active_broker_is_taken_out_of_service_and_nobody_notices(tmp_path: Path) -> None:
    with (
        pair(tmp_path) as (active, standby),
        working(active, paint, identity="painter", slots=8),
        Callers(active) as callers,
        client_of(active, timeout=20) as admin,
    ):
        until(callers.all_know_others)
        admin.manage("drain", auth_token=active.token)
        until(lambda: is_there(standby, "painter") and callers.all_at("s"), "all went to the standby")
        admin.manage("enable", auth_token=active.token)
        until(lambda: is_there(active, "painter") and callers.all_at("a"), "all are at home")
        before = list(callers.done)
        until(lambda: callers.all_served(before))
    assert max(callers.longest) <= SERVED_SECONDS, callers.longest


def test_programs_that_dial_the_standby_are_sent_on_and_the_command_line_shows_it(tmp_path: Path) -> None:
    with pair(tmp_path) as (active, standby):
        with working(standby, paint, identity="painter"), client_of(standby, timeout=20) as net:
            assert net.call("paint", "blue") == "it is blue"
            assert net.ping()["broker"] == "a"
            assert is_there(active, "painter")
        shell, place = Shell(tmp_path), standby.address()
        assert "standby for a" in shell.run("status", "--join", place).stdout
        assert "standby for a" in shell.run("peers", "--join", place).stdout
        assert "s: standby for a" in shell.run("topology", "--join", place).stdout
        active.kill9()
        until(lambda: "active in place of a" in shell.run("peers", "--join", place).stdout, "it serves")
        done = shell.run("status", "--join", place)
        assert (done.returncode, "active in place of a" in done.stdout) == (0, True)
