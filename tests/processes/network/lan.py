"""A network of hosts in which packets between two of them can be dropped. Needs nftables besides what namespaces need.

with lan("a", "b") as net:
    subprocess.run([*net.inside("a"), "ping", "-c1", net.address("b")])
    net.cut("a", "b")
    net.heal()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.namespaces import Namespaces, run

OUTSIDE = 254
"""The last number of our own address: this process reaches every host, whatever is cut between them."""


class Lan:
    """Hosts on one switch."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._hosts = Namespaces(hosts, net=f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}")
        self.address = self._hosts.address
        self.inside = self._hosts.inside
        self.down = self._hosts.down

    def up(self) -> None:
        self._hosts.up(OUTSIDE)
        for host in self._hosts.numbers:
            run(*self.inside(host), "nft", "add table inet cut")
            run(*self.inside(host), "nft", "add chain inet cut in { type filter hook input priority 0; }")

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Nothing that `sender` sends arrives at `receiver`, and neither gets an error."""
        run(*self.inside(receiver), "nft", f"add rule inet cut in ip saddr {self.address(sender)} drop")

    def cut(self, one: str, other: str) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def heal(self) -> None:
        for host in self._hosts.numbers:
            run(*self.inside(host), "nft", "flush chain inet cut in")


@contextmanager
def lan(*hosts: str) -> Iterator[Lan]:
    made = Lan(hosts)
    try:
        made.up()
        yield made
    finally:
        made.down()
