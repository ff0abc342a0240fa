"""A network of machines on one machine: namespaces on a switch, and cuts between them.

Lives here: hosts, addresses, and dropped packets. Never here: a broker, or an expectation. Invariant: whatever a test
does, the namespaces that it made are gone at the end, and no others. Needs root, iproute2 and nftables.

    with lan("a", "b") as net:
        subprocess.run([*net.inside("a"), "ping", "-c1", net.address("b")])
        net.cut("a", "b")
        net.heal()
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MASK = 24
OUTSIDE = 254
"""The last number of our own address: this process reaches every host, whatever is cut between them."""


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"


class Lan:
    """Hosts on one switch."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._tag = f"s{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._numbers = {name: number for number, name in enumerate(hosts, start=1)}

    def address(self, host: str) -> str:
        return f"{self._net}.{self._numbers[host]}"

    def inside(self, host: str) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self._space(host)]

    def up(self) -> None:
        switch = f"{self._tag}br"
        run("ip", "link", "add", switch, "type", "bridge")
        run("ip", "addr", "add", f"{self._net}.{OUTSIDE}/{MASK}", "dev", switch)
        run("ip", "link", "set", switch, "up")
        for host, number in self._numbers.items():
            space, plug = self._space(host), f"{self._tag}p{number}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", plug, "master", switch, "up")
            run(*self.inside(host), "ip", "addr", "add", f"{self.address(host)}/{MASK}", "dev", "eth0")
            run(*self.inside(host), "ip", "link", "set", "eth0", "up")
            run(*self.inside(host), "ip", "link", "set", "lo", "up")
            run(*self.inside(host), "nft", "add table inet cut")
            run(*self.inside(host), "nft", "add chain inet cut in { type filter hook input priority 0; }")

    def down(self) -> None:
        for host in self._numbers:
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}br"], capture_output=True, check=False)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Nothing that `sender` says arrives at `receiver`; no error tells anybody."""
        run(*self.inside(receiver), "nft", f"add rule inet cut in ip saddr {self.address(sender)} drop")

    def cut(self, one: str, other: str) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def heal(self) -> None:
        for host in self._numbers:
            run(*self.inside(host), "nft", "flush chain inet cut in")

    def _space(self, host: str) -> str:
        return f"{self._tag}-{host}"


@contextmanager
def lan(*hosts: str) -> Iterator[Lan]:
    made = Lan(hosts)
    try:
        made.up()
        yield made
    finally:
        made.down()
