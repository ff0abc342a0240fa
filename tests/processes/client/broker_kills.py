"""`python -m tests.processes.client.broker_kills`: kill brokers of a group again and again.

Each broker is a real process and dies by SIGKILL. Before each kill every client is connected to its own broker. A
client that is not served within the bound breaks a promise.

Each of three brokers has a client and a worker of its own. When one dies, all three clients ask at once for what only
its worker offers: its own client has to find another broker, its worker too, and the other two brokers have to find the
worker.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import until
from tests.processes.client.handlers import paint
from tests.processes.client.net import Together, all_know, brokers, client_of, is_there, started

NAMES = ("a", "b", "c")
SERVED_SECONDS = 5.0
"""From a broker's death until its clients are served again, at a heartbeat of one second."""
RETURN_SECONDS = 60.0
"""How long it may take until all clients have returned, on a busy machine."""


class Rounds:
    """Three brokers, and who belongs to them."""

    def __init__(self, group: dict[str, BrokerProcess], stack: ExitStack) -> None:
        self.group = group
        self.own: list[float] = []
        """How long clients of the broker that died waited."""
        self.others: list[float] = []
        """How long clients of the other brokers waited for its worker."""
        self._clients = {name: stack.enter_context(client_of(group[name], timeout=30)) for name in NAMES}
        for name in NAMES:
            worker = scale0.Worker(group[name].endpoints["backend"], identity=f"worker-{name}")
            worker.add(f"paint.{name}", paint, slots=4)
            stack.enter_context(started(worker))

    def kill(self, victim: str) -> float:
        """One death: the longest that anybody waited."""
        for name in NAMES:
            until(partial(self._is_connected, name), f"the clients of {name} are connected to it", RETURN_SECONDS)
        self.group[victim].kill9()
        died = time.monotonic()
        taken: dict[str, float] = {}
        together = Together()
        for name in NAMES:
            together.start(self._ask, name, victim, died, taken)
        together.join(60)
        self.own.append(taken.pop(victim))
        self.others += taken.values()
        self.group[victim].restart()
        return max(self.own[-1], *taken.values())

    def _ask(self, name: str, victim: str, died: float, taken: dict[str, float]) -> None:
        assert self._clients[name].call(f"paint.{victim}", "red", retry=True) == "it is red"
        taken[name] = time.monotonic() - died

    def _is_connected(self, name: str) -> bool:
        client = self._clients[name]
        returned = client.ping()["broker"] == name and client._core.session.connection.addresses.has_others
        return returned and is_there(self.group[name], f"worker-{name}") and all_know(self.group[name], NAMES)


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def summary(what: str, seconds: list[float]) -> str:
    """Median, 99th percentile and the longest."""
    some = sorted(seconds)
    p99 = some[math.ceil(0.99 * len(some)) - 1]
    return f"{what}: {len(some)} times, p50 {some[len(some) // 2]:.2f} s, p99 {p99:.2f} s, longest {some[-1]:.2f} s"


def main() -> int:
    """Exit 1 if a client waited too long."""
    parser = argparse.ArgumentParser(description="Kill brokers of a group again and again.")
    parser.add_argument("--first", type=int, default=1, help="the seed that says who dies (1)")
    parser.add_argument("--kills", type=int, default=100, help="how many brokers are killed (100)")
    options = parser.parse_args()
    dice, began = random.Random(options.first), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scale0-kills-") as folder, ExitStack() as stack:
        rounds = Rounds(stack.enter_context(brokers(Path(folder), *NAMES)), stack)
        for number in range(1, options.kills + 1):
            victim = dice.choice(NAMES)
            write(f"{number}: {victim} dies; all are served after {rounds.kill(victim):.2f} s")
    write(summary("its own clients are served again", rounds.own))
    write(summary("clients of others are served by its worker", rounds.others))
    late = sum(seconds > SERVED_SECONDS for seconds in (*rounds.own, *rounds.others))
    took = time.monotonic() - began
    write(f"{options.kills} kills, heartbeat 1 s: {late} waited longer than {SERVED_SECONDS:g} s ({took:.0f} s)")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
