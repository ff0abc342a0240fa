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
from tests.fakes.processes import background, scale0_command
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.client.net import client_of, started
from tests.processes.network.lan import Lan, lan

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

INTERVAL, LIVENESS = 1.0, 3
NOTICED_SECONDS = INTERVAL * (LIVENESS + 1) + 0.25
SPREAD_SECONDS = 2 * INTERVAL
"""After a cut is healed: until all have the newest configuration."""
BUSY_SECONDS = 1.0
"""How much later than promised a busy machine may be."""
SLEEPS_SECONDS = INTERVAL * (LIVENESS + 4)
"""Until a broker that only fell silent is replaced: its silence, a backoff, a delay, and negotiation."""
GROUPS = {"a": "east", "b": "east", "w": "west"}


class Cluster:
    """The three, and what each one knows."""

    def __init__(self, net: Lan, brokers: dict[str, BrokerProcess]) -> None:
        self.net = net
        self.brokers = brokers

    def ask(self, name: str, command: str, **words: Any) -> Any:
        with client_of(self.brokers[name], timeout=10) as net:
            return net.manage(command, auth_token=self.brokers[name].token, **words)

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
        return [one for one in journal_events(self.brokers[name].data_dir) if one["kind"] == kind]

    def is_well(self) -> bool:
        names = self.brokers.keys()
        return all(self.states(name) == dict.fromkeys(names - {name}, "active") for name in names)

    def agree(self) -> bool:
        return self.is_well() and len({self.rank(name) for name in self.brokers}) == 1

    def change(self, name: str, what: str) -> tuple[int, str]:
        done = self.ask(name, "patch_config", set={f"services.{what}": {"name": what}})
        return done["version"], done["hash"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
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
        cluster = Cluster(net, brokers)
        until(cluster.agree, "all know all")
        yield cluster
        for broker in brokers.values():
            broker.assert_no_traceback()


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    yield made
    made.net.heal()
    for broker in made.brokers.values():
        if not broker.running:
            broker.restart()
    until(made.agree, "all is well again", seconds=60)


def lost_at(cluster: Cluster, by: str, whom: str, before: int) -> dict[str, Any]:
    """The event of a loss, once there is one more than there were."""

    def find() -> list[dict[str, Any]]:
        return [one for one in cluster.events(by, "peer.lost") if one["identity"] == whom][before:]

    found: dict[str, Any] = until(find, f"{by} misses {whom}")[0]
    return found


def count(cluster: Cluster, by: str, whom: str) -> int:
    return sum(one["identity"] == whom for one in cluster.events(by, "peer.lost"))


def assert_in_time(lost: dict[str, Any]) -> None:
    silent = (lost["time"] - lost["at"]) / 1_000_000
    assert INTERVAL * LIVENESS <= silent <= NOTICED_SECONDS + BUSY_SECONDS, silent


def test_a_dead_broker_is_missed_in_time_and_comes_back(cluster: Cluster) -> None:
    before = {name: count(cluster, name, "b") for name in "aw"}
    cluster.brokers["b"].kill9()
    for name in "aw":
        assert_in_time(lost_at(cluster, name, "b", before[name]))
    cluster.brokers["b"].restart()
    until(cluster.agree, "it is back")


def test_a_broker_that_slept_takes_nobody_for_dead(cluster: Cluster) -> None:
    before = [count(cluster, "b", whom) for whom in "aw"]
    missed = count(cluster, "a", "b")
    os.kill(cluster.brokers["b"].pid, signal.SIGSTOP)
    try:
        assert_in_time(lost_at(cluster, "a", "b", missed))
    finally:
        os.kill(cluster.brokers["b"].pid, signal.SIGCONT)
    until(cluster.agree, "it is awake")
    assert [count(cluster, "b", whom) for whom in "aw"] == before


def test_the_clients_of_a_broker_that_sleeps_are_served_by_another_and_come_home(cluster: Cluster) -> None:
    """Nobody hangs up while it sleeps: silence alone tells."""
    worker = scale0.Worker(cluster.brokers["b"].endpoints["backend"], identity="painter")
    worker.add("paint", lambda colour: f"it is {colour}")
    with started(worker), client_of(cluster.brokers["b"], timeout=30) as net:
        until(lambda: net.ping() and net._core.session.connection.addresses.has_others)
        os.kill(cluster.brokers["b"].pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            assert net.call("paint", "red", retry=True) == "it is red"
            assert time.monotonic() - begun <= SLEEPS_SECONDS + BUSY_SECONDS
        finally:
            os.kill(cluster.brokers["b"].pid, signal.SIGCONT)
        until(lambda: is_at(cluster, "b") and net.ping()["broker"] == "b", "both come home")


def test_a_broker_that_receives_nothing_reports_the_loss_and_the_others_do_not(cluster: Cluster) -> None:
    before, others = count(cluster, "a", "b"), count(cluster, "w", "b")
    cluster.net.cut_one_way("b", "a")
    assert_in_time(lost_at(cluster, "a", "b", before))
    assert cluster.states("w") == {"a": "active", "b": "active"}
    assert count(cluster, "w", "b") == others
    rank = cluster.change("a", "one-way")
    until(lambda: cluster.rank("b") == rank, "by way of w it is told all the same")
    cluster.net.heal()
    until(cluster.agree)


def marked(cluster: Cluster, name: str, folder: Path) -> set[str]:
    """What `scale0 config history` says has lost since the cut."""
    place = cluster.brokers[name].address()
    words = ("config", "history", "--join", place, "--data-dir", cluster.brokers[name].config["data_dir"])
    # On the broker's own machine: a token is sent to no other without a key.
    command = [*cluster.net.inside(name), *scale0_command(*words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith(" lost")]
    newest = max(int(row[0]) for row in rows)
    return {row[-2] for row in rows if int(row[0]) == newest}


def test_two_administrators_on_two_sides_of_a_cut(cluster: Cluster, tmp_path: Path) -> None:
    conflicts = {name: len(cluster.events(name, "config.conflict")) for name in "aw"}
    cluster.net.cut("a", "w")
    cluster.net.cut("b", "w")
    until(lambda: cluster.states("w") == {"a": "lost", "b": "lost"})
    ranks = [cluster.change("a", "east-first"), cluster.change("a", "east-second"), cluster.change("w", "west-first")]
    until(lambda: cluster.rank("b") == ranks[1], "one side has its own")
    assert cluster.rank("w") == ranks[2]
    cluster.net.heal()
    until(lambda: cluster.states("w")["a"] == "active" == cluster.states("a")["w"], "they hear each other", seconds=40)
    until(lambda: len({cluster.rank(name) for name in GROUPS}) == 1, "all agree", SPREAD_SECONDS + BUSY_SECONDS)
    assert cluster.rank("b") == max(ranks)
    until(lambda: {ranks[1], ranks[2]} <= cluster.history("a") & cluster.history("w"), "both have both")
    lost = min(ranks[1], ranks[2])
    for name in "aw":
        assert marked(cluster, name, tmp_path) == {lost[1][:12]}, f"{name} does not say which one lost"
    for name in "aw":
        assert {ranks[1], ranks[2]} <= cluster.history(name), f"{name} has lost one of the two"
        assert len(cluster.events(name, "config.conflict")) > conflicts[name], f"{name} was not told"


def test_a_network_that_flaps_settles(cluster: Cluster) -> None:
    dice = random.Random(7)
    pairs = [("a", "b"), ("b", "a"), ("a", "w"), ("w", "a"), ("b", "w"), ("w", "b")]
    rank = cluster.rank("a")
    pause = threading.Event()
    for number in range(12):
        cluster.net.heal()
        for sender, receiver in dice.sample(pairs, dice.randint(1, 4)):
            cluster.net.cut_one_way(sender, receiver)
        if number % 3 == 0:
            rank = max(rank, cluster.change("a", f"flap-{number}"))
        pause.wait(dice.uniform(0.2, 2.0))  # it is the fault schedule, not a wait for anything
    cluster.net.heal()
    until(cluster.agree, "it settles", seconds=40)
    assert cluster.rank("w") == rank


def test_a_broker_that_returns_with_an_old_disk_downgrades_nobody(cluster: Cluster, tmp_path: Path) -> None:
    old = cluster.brokers["b"]
    data = old.data_dir
    old.terminate()
    shutil.copytree(data, tmp_path / "old")
    old.restart()
    until(cluster.agree)
    stale = cluster.rank("b")
    for number in range(3):
        newest = cluster.change("a", f"newer-{number}")
    until(cluster.agree)
    old.kill9()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "old", data)
    seen: list[tuple[int, str]] = []

    def agree() -> bool:
        seen.extend(cluster.rank(name) for name in "aw")
        return cluster.agree()

    old.restart()
    until(agree)
    assert set(seen) == {newest}
    assert cluster.rank("b") == newest > stale


def test_a_worker_that_is_cut_off_from_its_broker_works_for_another(cluster: Cluster, tmp_path: Path) -> None:
    """Half-open: nobody hangs up, and nothing arrives any more."""
    program = tmp_path / "painter.py"
    program.write_text(
        "import sys, scale0\n"
        "worker = scale0.Worker(sys.argv[1], identity='painter')\n"
        "worker.add('paint', lambda colour: f'it is {colour}')\n"
        "worker.run()\n"
    )
    home = cluster.brokers["a"].endpoints["backend"]
    with background([*cluster.net.inside("h"), sys.executable, str(program), home], tmp_path) as worker:
        until(lambda: is_at(cluster, "a"), "it works")
        cluster.net.cut("h", "a")
        until(lambda: is_at(cluster, "b"), "it works for another")
        with client_of(cluster.brokers["a"], timeout=10) as caller:
            assert caller.call("paint", "red") == "it is red", "its own broker finds it there"
        worker.signal(signal.SIGTERM)
        worker.wait(40)


def is_at(cluster: Cluster, name: str) -> bool:
    """It takes work there: so it has read its configuration, and knows of other brokers."""
    with client_of(cluster.brokers[name], timeout=10) as net:
        return any(row["identity"] == "painter" and "paint" in row["services"] for row in net.clients())


def test_nothing_that_was_asked_for_is_lost_while_halves_come_and_go(cluster: Cluster) -> None:
    """Requests that may run twice, from a client of the east, while its two brokers are cut apart and die in turn."""
    worker = scale0.Worker(cluster.brokers["a"].endpoints["backend"], identity="steady")
    worker.add("add", lambda a, b: a + b)
    with started(worker), client_of(cluster.brokers["b"], timeout=30) as net:
        until(lambda: net.ping() and net._core.session.connection.addresses.has_others)
        for number in range(4):
            assert net.call("add", number, 1, retry=True) == number + 1
            victim = cluster.brokers["ab"[number % 2]]
            victim.kill9()
            assert net.call("add", number, 2, retry=True) == number + 2
            victim.restart()
            until(cluster.is_well)


def test_a_machine_of_the_network_draws_it(cluster: Cluster) -> None:
    place = cluster.brokers["b"].address()
    words = [*cluster.net.inside("h"), *scale0_command("topology", "--join", place, "--insecure")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for name, group in GROUPS.items():
        assert f"{name}: active" in done.stdout
        assert group in done.stdout
