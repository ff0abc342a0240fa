"""Two groups of brokers, each the other's fallback: the east dies, calls continue in the west, then all clients return.

From the folder `examples`: python -m two_groups.run
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from local_network import PORTS, LocalNetwork, Story, free_port, wait_for

import scale0

HERE = Path(__file__).parent
tell = Story().tell
EAST, WEST = ("east-1", "east-2"), ("west-1",)


class Caller(threading.Thread):
    """A client that calls continuously."""

    def __init__(self, client: scale0.Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._ended = threading.Event()
        self.heard = ""
        self.answers = 0
        self.errors: list[scale0.CallError] = []
        self.longest_seconds = 0.0

    def run(self) -> None:
        """Calls that may run twice: the death of a broker then costs time, not an error."""
        while not self._ended.wait(0.02):
            asked = time.monotonic()
            try:
                self.heard = self._client.call("hello", "Ada", retry=True, timeout=30)
                self.answers += 1
            except scale0.CallError as error:
                self.errors.append(error)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - asked)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def start_broker(net: LocalNetwork, name: str, ports: list[int], join: int | None) -> dict[str, str]:
    """A broker with its group's file. It restarts on the same ports, where others expect it."""
    words = ["--config", str(HERE / f"{name.partition('-')[0]}.zpl")]
    for kind, port in zip(PORTS, ports, strict=True):
        words += [f"--{kind}-port", str(port)]
    if join is not None:
        words += ["--join", f"127.0.0.1:{join}"]
    return net.broker(name, *words)


def both_know(shown: str) -> bool:
    """Services are published at once, the number of clients with the next heartbeat."""
    return shown.count("hello") == 2 and "west-1: active, 1 client" in shown


def main() -> None:
    """A whole network, for the duration of the scenario."""
    with LocalNetwork() as net:
        ports = {name: [free_port() for _ in PORTS] for name in (*EAST, *WEST)}
        first = ports[EAST[0]][PORTS.index("peer")]  # one address is enough to join by
        ends = {name: start_broker(net, name, ports[name], None if name == EAST[0] else first) for name in ports}
        for group, at in (("east", EAST[0]), ("west", WEST[0])):
            net.environment["GROUP"] = group
            net.start(f"worker-{group}", "worker", str(HERE / "greeter.py"), "--endpoint", ends[at]["backend"])
        wait_for(lambda: both_know(net.run("topology")), "all know each other, and both workers")
        net.show("topology")
        print()
        with scale0.Client(ends[EAST[0]]["frontend"]) as client:
            story(net, client, ports, first)


def story(net: LocalNetwork, client: scale0.Client, ports: dict[str, list[int]], first: int) -> None:
    """The scenario."""

    def broker() -> str:
        return str(client.ping()["broker"])

    with Caller(client) as caller:
        wait_for(lambda: "east" in caller.heard, "the east answers")
        # A client receives the addresses of other brokers with its identity. Calls do not wait for that.
        wait_for(lambda: client.identity, "the client knows the network")
        tell(f"{caller.heard} By {broker()}.")
        for name in EAST:
            net.kill(name)
        tell("kill -9 of every broker of the east")
        wait_for(lambda: "west" in caller.heard, "the west answers")
        tell(f"{caller.heard} By {broker()}.")
        for name in EAST:
            start_broker(net, name, ports[name], None if name == EAST[0] else first)
        tell("the east is back")
        wait_for(lambda: broker() == EAST[0] and "east" in caller.heard, "home again")
        tell(f"{caller.heard} By {broker()}, home again.")
    errors = f"{len(caller.errors)} errors" if caller.errors else "no error"
    tell(f"{caller.answers} answers, {errors}; the longest took {caller.longest_seconds:.1f} s")


if __name__ == "__main__":
    main()
