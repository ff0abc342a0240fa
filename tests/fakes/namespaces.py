"""Hosts on this machine: network namespaces on one switch. Needs root and iproute2; imports only the standard library.

Whatever a test does, the namespaces that it made are removed at the end, and no others.
"""

from __future__ import annotations

import itertools
import os
import string
import subprocess
from collections.abc import Sequence
from typing import Final

MASK: Final = 24
_letters: Final = itertools.cycle(string.ascii_lowercase)


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"


class Namespaces:
    """One namespace for each host."""

    def __init__(self, hosts: Sequence[str], net: str = "10.0.0") -> None:
        # The kernel removes the links of a deleted namespace a little later: the next ones have other names.
        self._tag = f"s{os.getpid() % 100_000}{next(_letters)}"
        self._net = net
        self.numbers = {name: number for number, name in enumerate(hosts, start=1)}

    def address(self, host: str) -> str:
        return f"{self._net}.{self.numbers[host]}"

    def inside(self, host: str) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def namespace(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def up(self, outside: int = 0) -> None:
        """Make them; `outside` is the last number of this machine's own address on the switch, 0: it has none."""
        for host in self.numbers:
            run("ip", "netns", "add", self.namespace(host))
            run("ip", "-n", self.namespace(host), "link", "set", "lo", "up")
        if len(self.numbers) > 1:
            self._connect(outside)

    def _connect(self, outside: int) -> None:
        switch = f"{self._tag}br"
        run("ip", "link", "add", switch, "type", "bridge")
        if outside:
            run("ip", "addr", "add", f"{self._net}.{outside}/{MASK}", "dev", switch)
        run("ip", "link", "set", switch, "up")
        for host, number in self.numbers.items():
            namespace, plug = self.namespace(host), f"{self._tag}p{number}"
            run("ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            run("ip", "link", "set", plug, "master", switch, "up")
            run("ip", "-n", namespace, "addr", "add", f"{self.address(host)}/{MASK}", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def down(self) -> None:
        for host in self.numbers:
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}br"], capture_output=True, check=False)
