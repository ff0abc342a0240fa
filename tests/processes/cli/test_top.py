"""`scale0 top` with a real broker: by Textual's pilot, in a real terminal, and through a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

import scale0
from scale0.cli.common.authentication import AdminAccess
from scale0.cli.network import snapshot
from scale0.cli.top.screen import DetailPage, TopApp
from scale0.cli.top.views import VIEWS
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.processes import background
from tests.fakes.shell import manager_of, shell_of
from tests.fakes.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.processes

SIZE = (80, 24)
QUIT_SECONDS = 5.0
"""However long the broker has been silent."""


def app_of(broker: BrokerProcess, *, right: bool = True) -> TopApp:
    place = broker.endpoints["frontend"]
    access = AdminAccess(place, data_dir=broker.config["data_dir"] if right else None)
    return TopApp(place, snapshot.AdminRights(access), 0.2, VIEWS[0])


async def until(pilot: Pilot[None], true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, f"{what}; the screen:\n{screen(pilot)}"
        await pilot.pause(0.05)


def screen(pilot: Pilot[None]) -> str:
    return "\n".join(str(one.render()) for one in pilot.app.screen_stack[0].query(Static))


def rows(pilot: Pilot[None]) -> list[list[str]]:
    table = pilot.app.screen_stack[0].query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


def piloted(broker: BrokerProcess, play: Any, *, right: bool = True) -> None:
    async def run() -> None:
        async with app_of(broker, right=right).run_test(size=SIZE) as pilot:
            await play(pilot)

    asyncio.run(run())


@contextlib.contextmanager
def calling(broker: BrokerProcess, service: str) -> Iterator[None]:
    code = (
        "import sys, scale0\n"
        "with scale0.Client(sys.argv[1]) as net:\n"
        "    while True:\n"
        "        list(net.map(sys.argv[2], ['x'] * 20))\n"
    )
    with background([sys.executable, "-c", code, broker.endpoints["frontend"], service], broker.data_dir):
        yield


# Promise: TERM-8
def test_services_have_rates_and_latencies(served):
    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0] == "say", "the busiest service stands first")
        await until(pilot, lambda: float(rows(pilot)[0][1].replace(",", "")) > 1, "it has a rate")
        await until(pilot, lambda: rows(pilot)[0][4].endswith("ms"), "and a p99")
        assert "broker-1 active" in screen(pilot)
        assert "p99" in screen(pilot)

    with calling(served, "say"):
        piloted(served, play)


# Promise: TERM-9
def test_keys_sort_filter_open_and_switch(served):
    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) >= 5, "services are there")
        await pilot.press("slash", *"bytes")
        await until(pilot, lambda: {row[0] for row in rows(pilot)} == {"bytes", "bytes.parts"}, "a filter")
        await pilot.press("enter")
        assert not pilot.app.query_one("#filter", Input).display
        await pilot.press("r")
        before = [row[0] for row in rows(pilot)]
        await pilot.press("r")
        assert [row[0] for row in rows(pilot)] == before[::-1]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DetailPage), "a row is open")
        opened = str(pilot.app.screen.query_one(Static).render())
        assert "scale0 call bytes" in opened
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, DetailPage), "it is closed")
        await pilot.press("escape")
        await until(pilot, lambda: len(rows(pilot)) >= 5, "all rows again")
        await pilot.press("6")
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0] == "broker-1", "the brokers")
        await pilot.press("tab", "tab")
        await until(pilot, lambda: len(rows(pilot)) >= 5, "round to the services")
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, DetailPage), "help")
        await pilot.press("q")
        await pilot.press("s", "s", "s")

    piloted(served, play)


# Promise: TERM-9
def test_a_pause_stands_still(served):
    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) >= 5, "services are there")
        await pilot.press("p")
        await until(pilot, lambda: "paused" in screen(pilot), "it says so")
        await pilot.press("p")
        await until(pilot, lambda: "paused" not in screen(pilot), "it goes on")

    piloted(served, play)


# Promise: TERM-9
def test_a_broker_that_goes_is_shown_as_away_and_found_again(tmp_path):
    with broker_process(tmp_path) as broker:

        async def play(pilot: Pilot[None]) -> None:
            await until(pilot, lambda: "broker-1 active" in screen(pilot), "it is there")
            broker.kill9()
            await until(pilot, lambda: "no answer for" in screen(pilot), "it is away")
            began = time.monotonic()
            await pilot.press("2")
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(pilot.app.screen, DetailPage), "the screen lives")
            assert time.monotonic() - began < 2.0
            await pilot.press("escape")
            await asyncio.to_thread(broker.restart)
            # Its token is a new one: it is read again.
            await until(pilot, lambda: "broker-1 active" in screen(pilot), "it is back")
            await until(pilot, lambda: "0.0/s" in screen(pilot), "with rates")

        piloted(broker, play)


# Promise: TERM-8
def test_without_a_right_it_shows_what_anybody_may_know(served):
    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) >= 5, "services are there")
        assert {row[1] for row in rows(pilot)} == {"-"}
        assert "--data-dir" in screen(pilot)

    piloted(served, play, right=False)


def test_80_columns_and_24_lines_are_enough(served):
    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) >= 5, "services are there")
        for number in range(len(VIEWS)):
            await pilot.press(str(number + 1))
            await pilot.pause()
            table = pilot.app.query_one(DataTable)
            assert not table.show_horizontal_scrollbar, VIEWS[number].name
            assert table.size.height >= 15

    piloted(served, play)


# Promise: TERM-9
def test_in_a_real_terminal_it_draws_and_quits(served, tmp_path):
    shell = manager_of(served, tmp_path, TERM="xterm-256color")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "scale0", "top"]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=shell.environment)
    os.close(theirs)
    try:
        output = read_until(ours, b"empty.list")
        assert b"\x1b[?1049h" in output, "it has a screen of its own"
        os.write(ours, b"q")
        output = read_until(ours, b"\x1b[?1049l")
        assert process.wait(QUIT_SECONDS) == 0
        assert b"Traceback" not in output
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, text: bytes) -> bytes:
    output = b""
    until = time.monotonic() + PATIENCE_SECONDS
    while text not in output:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        assert readable, f"no {text!r} in {output[-2_000:]!r}"
        output += os.read(descriptor, 65_536)
    return output


# Promise: TERM-8
def test_through_a_pipe_it_is_one_frame_of_plain_text(served, tmp_path):
    shell = manager_of(served, tmp_path)
    done = shell.run("top")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("broker-1 active · up ")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    one = shell.run("top", "--once", "--view", "services", "--filter", "bytes").stdout
    assert [line.split()[0] for line in one.splitlines()[-2:]] == ["bytes", "bytes.parts"]
    assert "\nqueues" not in one


# Promise: TERM-8
def test_as_json_it_is_one_object(served, tmp_path):
    shell = manager_of(served, tmp_path)
    with scale0.Client(served.endpoints["frontend"]) as client:
        client.call("say", "hello")
    found = shell.json("top", "--interval", "0.3")
    assert found["status"]["broker"] == "broker-1"
    assert {"services", "queues", "agents", "checks", "incidents", "brokers", "findings", "total"} <= found.keys()
    assert all(row["rates"] is not None for row in found["services"])
    plain = shell_of(served, tmp_path).run("top", "--json")
    assert json.loads(plain.stdout)["managed"] is False


def test_without_a_broker_it_exits_with_3(tmp_path, served):
    shell = shell_of(served, tmp_path)
    assert shell.run("top", "--once", "--join", "127.0.0.1:1").returncode == 3
