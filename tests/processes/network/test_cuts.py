"""Three brokers on three machines, in two groups: killed, paused, cut off and brought back with an old disk.

Promise: CONF-3, CONF-7, LIVE-1, NEGO-5
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.journals import journal_events
from tests.fakes.waiting import until
from tests.processes.cli.shell import Shell
from tests.processes.client.net import client_of, started, token_of
from tests.processes.network.lan import Lan, lan

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

INTERVAL, LIVENESS = 1.0, 3
NOTICED_SECONDS = INTERVAL * (LIVENESS + 1) + 0.25
SPREAD_SECONDS = 2 * INTERVAL
"""After a cut is healed: until all have the newest configuration."""
BUSY_SECONDS = 1.0
"""How much later than promised a busy machine may be."""
SLEEPS_SECONDS = INTERVAL * (LIVENESS + 4)
"""Until a broker that only fell silent is replaced: its silence, a backoff, a wait that was told, and negotiation."""
GROUPS = {"a": "east", "b": "east", "w": "west"}


class Town:
    """The three, and what each one knows."""

    def __init__(self, net: Lan, brokers: dict[str, BrokerProcess]) -> None:
        self.net = net
        self.brokers = brokers

    def ask(self, name: str, command: str, **words: Any) -> Any:
        with client_of(self.brokers[name], timeout=10) as net:
            return net.manage(command, auth_token=token_of(self.brokers[name]), **words)

    def states(self, name: str) -> dict[str, str]:
        rows = self.ask(name, "list_peers")["items"]
        return {row["broker"]: row["state"] for row in rows if row["broker"]}

    def rank(self, name: str) -> tuple[int, str]:
        held = self.ask(name, "get_config")
        return held["version"], held["hash"]

    def history(self, name: str) -> set[tuple[int, str]]:
        return {(row["version"], row["hash"]) for row in self.ask(name, "config_history", limit=1_000)["items"]}

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Those that the broker has written down."""
        return [one for one in journal_events(Path(self.brokers[name].config["data_dir"])) if one["kind"] == kind]

    def is_well(self) -> bool:
        names = self.brokers.keys()
        return all(self.states(name) == dict.fromkeys(names - {name}, "active") for name in names)

    def agree(self) -> bool:
        return self.is_well() and len({self.rank(name) for name in self.brokers}) == 1

    def change(self, name: str, what: str) -> tuple[int, str]:
        said = self.ask(name, "patch_config", set={f"services.{what}": {"name": what}})
        return said["version"], said["hash"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with lan(*GROUPS, "h") as net, ExitStack() as stack:
        brokers: dict[str, BrokerProcess] = {}
        for name, group in GROUPS.items():
            config: dict[str, Any] = {
                "identity": name,
                "group": group,
                "bind": net.address(name),
                "insecure": True,
                "config_service": name != "b",
                "fallback_groups": ["west"] if group == "east" else ["east"],
                "peers": [brokers["a"].endpoints["peer"]] if brokers else [],
                "state": "joining" if brokers else "active",
            }
            broker = BrokerProcess(tmp_path_factory.mktemp(name), config)
            broker.prefix = net.inside(name)
            stack.callback(broker.close)
            broker.start()
            brokers[name] = broker
        town = Town(net, brokers)
        until(town.agree, "all know all")
        yield town
        for broker in brokers.values():
            assert "Traceback" not in broker.log.read_text(errors="replace")


@pytest.fixture
def town(made: Town) -> Iterator[Town]:
    yield made
    made.net.heal()
    for broker in made.brokers.values():
        if not broker.running:
            broker.restart()
    until(made.agree, "all is well again", seconds=60)


def lost_at(town: Town, by: str, whom: str, before: int) -> dict[str, Any]:
    """The event of a loss, once there is one more than there were."""

    def find() -> list[dict[str, Any]]:
        return [one for one in town.events(by, "peer.lost") if one["identity"] == whom][before:]

    found: dict[str, Any] = until(find, f"{by} misses {whom}")[0]
    return found


def count(town: Town, by: str, whom: str) -> int:
    return sum(one["identity"] == whom for one in town.events(by, "peer.lost"))


def assert_in_time(lost: dict[str, Any]) -> None:
    silent = (lost["time"] - lost["at"]) / 1_000_000
    assert INTERVAL * LIVENESS <= silent <= NOTICED_SECONDS + BUSY_SECONDS, silent


def test_a_dead_broker_is_missed_in_time_and_comes_back(town: Town) -> None:
    before = {name: count(town, name, "b") for name in "aw"}
    town.brokers["b"].kill9()
    for name in "aw":
        assert_in_time(lost_at(town, name, "b", before[name]))
    town.brokers["b"].restart()
    until(town.agree, "it is back")


def test_a_broker_that_slept_takes_nobody_for_dead(town: Town) -> None:
    before = [count(town, "b", whom) for whom in "aw"]
    missed = count(town, "a", "b")
    os.kill(town.brokers["b"].pid, signal.SIGSTOP)
    try:
        assert_in_time(lost_at(town, "a", "b", missed))
    finally:
        os.kill(town.brokers["b"].pid, signal.SIGCONT)
    until(town.agree, "it is awake")
    assert [count(town, "b", whom) for whom in "aw"] == before


def test_the_clients_of_a_broker_that_sleeps_are_served_by_another_and_come_home(town: Town) -> None:
    """Nobody hangs up while it sleeps: silence alone tells."""
    worker = scale0.Worker(town.brokers["b"].endpoints["backend"], identity="painter")
    worker.add("paint", lambda colour: f"it is {colour}")
    with started(worker), client_of(town.brokers["b"], timeout=30) as net:
        until(lambda: net.ping() and net._core.session.connection.addresses.has_others)
        os.kill(town.brokers["b"].pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            assert net.call("paint", "red", retry=True) == "it is red"
            assert time.monotonic() - begun <= SLEEPS_SECONDS + BUSY_SECONDS
        finally:
            os.kill(town.brokers["b"].pid, signal.SIGCONT)
        until(lambda: is_at(town, "b") and net.ping()["broker"] == "b", "both come home")


def test_who_hears_nothing_says_so_and_the_others_do_not(town: Town) -> None:
    before, others = count(town, "a", "b"), count(town, "w", "b")
    town.net.cut_one_way("b", "a")
    assert_in_time(lost_at(town, "a", "b", before))
    assert town.states("w") == {"a": "active", "b": "active"}
    assert count(town, "w", "b") == others
    rank = town.change("a", "one-way")
    until(lambda: town.rank("b") == rank, "by way of w it is told all the same")
    town.net.heal()
    until(town.agree)


def marked(town: Town, name: str, folder: Path) -> set[str]:
    """What `scale0 config history` says has lost since the cut."""
    place = town.brokers[name].endpoints["frontend"].removeprefix("tcp://")
    words = ("config", "history", "--join", place, "--data-dir", town.brokers[name].config["data_dir"])
    said = Shell(folder).run(*words)
    assert said.returncode == 0, said.stderr
    rows = [line.split() for line in said.stdout.splitlines() if line.rstrip().endswith(" lost")]
    newest = max(int(row[0]) for row in rows)
    return {row[-2] for row in rows if int(row[0]) == newest}


def test_two_administrators_on_two_sides_of_a_cut(town: Town, tmp_path: Path) -> None:
    conflicts = {name: len(town.events(name, "config.conflict")) for name in "aw"}
    town.net.cut("a", "w")
    town.net.cut("b", "w")
    until(lambda: town.states("w") == {"a": "lost", "b": "lost"})
    ranks = [town.change("a", "east-first"), town.change("a", "east-second"), town.change("w", "west-first")]
    until(lambda: town.rank("b") == ranks[1], "one side has its own")
    assert town.rank("w") == ranks[2]
    town.net.heal()
    until(lambda: town.states("w")["a"] == "active" == town.states("a")["w"], "they hear each other", seconds=40)
    until(lambda: len({town.rank(name) for name in GROUPS}) == 1, "all have the newest", SPREAD_SECONDS + BUSY_SECONDS)
    assert town.rank("b") == max(ranks)
    until(lambda: {ranks[1], ranks[2]} <= town.history("a") & town.history("w"), "both have both")
    lost = min(ranks[1], ranks[2])
    for name in "aw":
        assert marked(town, name, tmp_path) == {lost[1][:12]}, f"{name} does not say which one lost"
    for name in "aw":
        assert {ranks[1], ranks[2]} <= town.history(name), f"{name} has lost one of the two"
        assert len(town.events(name, "config.conflict")) > conflicts[name], f"{name} was not told"


def test_a_network_that_flaps_settles(town: Town) -> None:
    dice = random.Random(7)
    pairs = [("a", "b"), ("b", "a"), ("a", "w"), ("w", "a"), ("b", "w"), ("w", "b")]
    rank = town.rank("a")
    pause = threading.Event()
    for number in range(12):
        town.net.heal()
        for sender, receiver in dice.sample(pairs, dice.randint(1, 4)):
            town.net.cut_one_way(sender, receiver)
        if number % 3 == 0:
            rank = max(rank, town.change("a", f"flap-{number}"))
        pause.wait(dice.uniform(0.2, 2.0))  # it is the weather, not a wait for anything
    town.net.heal()
    until(town.agree, "it settles", seconds=40)
    assert town.rank("w") == rank


def test_a_broker_that_returns_with_an_old_disk_downgrades_nobody(town: Town, tmp_path: Path) -> None:
    old = town.brokers["b"]
    data = Path(old.config["data_dir"])
    old.terminate()
    shutil.copytree(data, tmp_path / "old")
    old.restart()
    until(town.agree)
    stale = town.rank("b")
    for number in range(3):
        newest = town.change("a", f"newer-{number}")
    until(town.agree)
    old.kill9()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "old", data)
    seen: list[tuple[int, str]] = []

    def agree() -> bool:
        seen.extend(town.rank(name) for name in "aw")
        return town.agree()

    old.restart()
    until(agree)
    assert set(seen) == {newest}
    assert town.rank("b") == newest > stale


def test_a_worker_that_is_cut_off_from_its_broker_works_for_another(town: Town, tmp_path: Path) -> None:
    """Half-open: nobody hangs up, and nothing arrives any more."""
    program = tmp_path / "painter.py"
    program.write_text(
        "import sys, scale0\n"
        "worker = scale0.Worker(sys.argv[1], identity='painter')\n"
        "worker.add('paint', lambda colour: f'it is {colour}')\n"
        "worker.run()\n"
    )
    home = town.brokers["a"].endpoints["backend"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([*town.net.inside("h"), sys.executable, str(program), home], env=environment)
    try:
        until(lambda: is_at(town, "a"), "it works")
        town.net.cut("h", "a")
        until(lambda: is_at(town, "b"), "it works for another")
        with client_of(town.brokers["a"], timeout=10) as caller:
            assert caller.call("paint", "red") == "it is red", "its own broker finds it there"
    finally:
        process.terminate()
        process.wait(40)


def is_at(town: Town, name: str) -> bool:
    """It takes work there: so it has read its configuration, and knows of other brokers."""
    with client_of(town.brokers[name], timeout=10) as net:
        return any(row["identity"] == "painter" and "paint" in row["services"] for row in net.clients())


def test_nothing_that_was_asked_for_is_lost_while_halves_come_and_go(town: Town) -> None:
    """Requests that may run twice, from a client of the east, while its two brokers are cut apart and die in turn."""
    worker = scale0.Worker(town.brokers["a"].endpoints["backend"], identity="steady")
    worker.add("add", lambda a, b: a + b)
    worker.start()
    try:
        assert worker.wait_until_up(20)
        with client_of(town.brokers["b"], timeout=30) as net:
            until(lambda: net.ping() and net._core.session.connection.addresses.has_others)
            for number in range(4):
                assert net.call("add", number, 1, retry=True) == number + 1
                victim = town.brokers["ab"[number % 2]]
                victim.kill9()
                assert net.call("add", number, 2, retry=True) == number + 2
                victim.restart()
                until(town.is_well)
    finally:
        worker.stop(drain=0.0)


def test_a_machine_of_the_network_draws_it(town: Town) -> None:
    place = town.brokers["b"].endpoints["frontend"].removeprefix("tcp://")
    words = [*town.net.inside("h"), sys.executable, "-m", "scale0", "topology", "--join", place]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for name, group in GROUPS.items():
        assert f"{name}: active" in done.stdout
        assert group in done.stdout
