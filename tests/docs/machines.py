"""Machines for pages: network namespaces with host names of their own, folders, and shells on them.

Lives here: everything that touches the system. Never here: what a page says. Invariant: default ports are free on a new
machine, nothing leads out of it, and whatever was started there is ended with it. Needs root and iproute2.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.docs.servers import Postgresql

REPOSITORY: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ("JAVA_HOME", "LANG", "SPARK_HOME")
DONE: Final = "-*- done:"
COMMAND_SECONDS: Final = 500.0
"""Spark, on a machine that has other things to do."""
_letters: Final = itertools.cycle(string.ascii_lowercase)


class Overdue(Exception):
    """A command printed this and went on."""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"


class Shell:
    """A bash that is given commands one after the other, and tells what they print."""

    def __init__(self, space: str, host: str, home: Path, hosts: Path, programs: str) -> None:
        self._script = home.parent / f"{host}-{id(self)}.sh"
        environment = {
            "PATH": f"{programs}{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "HOME": str(home),
            "COLUMNS": "110",
            "TERM": "dumb",
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONUNBUFFERED": "1",
            **{name: os.environ[name] for name in KEPT if name in os.environ},
        }
        words = ["ip", "netns", "exec", space, "unshare", "--uts", "bash", "--noprofile", "--norc"]
        self._process = subprocess.Popen(
            words, cwd=home, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._printed = b""
        self.run(f"hostname {host}; mount --bind {hosts} /etc/hosts")  # in namespaces of its own

    def run(self, command: str) -> tuple[list[str], int]:
        """Type a command, and wait for its end: what it printed, and its exit status."""
        self.type(command)
        return self.wait()

    def type(self, command: str) -> None:
        """Type a command. Its input is empty: what a page types is all that there is."""
        self._script.write_text(command + "\n", encoding="utf-8")
        self._say(f'. {self._script} </dev/null; printf "\\n{DONE}%s\\n" $?\n')

    def wait(self, seconds: float = COMMAND_SECONDS) -> tuple[list[str], int]:
        """Wait for the end of the command that is under way."""
        lines = self.read_until(lambda lines: bool(lines) and lines[-1].startswith(DONE), seconds)
        self._printed = b""
        status = int(lines.pop().removeprefix(DONE))
        while lines and not lines[-1]:
            lines.pop()
        return lines, status

    def read_until(self, is_enough: Callable[[list[str]], bool], seconds: float) -> list[str]:
        """The whole lines that the command has printed, once they are enough."""
        deadline = time.monotonic() + seconds
        while True:
            lines = self._printed.decode(errors="replace").split("\n")[:-1]
            if is_enough(lines):
                return lines
            left = deadline - time.monotonic()
            if left <= 0:
                raise Overdue("\n".join(lines))
            for key, _ in self._selector.select(left):
                self._printed += os.read(key.fd, 1 << 16)

    def forget(self) -> None:
        """What was printed until now has been read."""
        self._printed = b""

    def interrupt(self) -> None:
        """Ctrl-C: for what runs in the foreground, not for the shell."""
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGINT)

    def close(self) -> None:
        """What was started in it may still hold its output: nobody waits for that."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def _say(self, text: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()


class Machines:
    """Hosts on one switch, with shells on them."""

    def __init__(self, hosts: Sequence[str], folder: Path) -> None:
        # The kernel takes the links of a namespace that is gone away a little later: the next page has other names.
        self._tag = f"d{os.getpid() % 100_000}{next(_letters)}"
        self._hosts = hosts
        self._folder = folder
        self._shells: dict[tuple[str, str], Shell] = {}
        self._postgresql: Postgresql | None = None

    def shell(self, host: str, name: str) -> Shell:
        """A shell on a host (the first, if none is named), opened when it is first used."""
        host = host or self._hosts[0]
        key = (host, name)
        if key not in self._shells:
            programs = f"{self._postgresql.programs}:" if self._postgresql else ""
            self._shells[key] = Shell(self._space(host), host, self.home(host), self._folder / "hosts", programs)
        return self._shells[key]

    def serve_postgresql(self) -> None:
        """The first host has a server, and shells that are opened from now on find its programs."""
        self._postgresql = Postgresql(self._space(self._hosts[0]))

    def home(self, host: str) -> Path:
        """Where its shells begin."""
        return self._folder / (host or self._hosts[0])

    def up(self) -> None:
        names = [f"10.0.0.{number} {host}" for number, host in enumerate(self._hosts, start=1)]
        known = names if len(names) > 1 else [f"127.0.0.1 {self._hosts[0]}"]
        (self._folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *known]) + "\n", encoding="ascii")
        for host in self._hosts:
            self.home(host).mkdir()
            _run("ip", "netns", "add", self._space(host))
            _run("ip", "-n", self._space(host), "link", "set", "lo", "up")
        if len(self._hosts) > 1:
            self._connect()

    def down(self) -> None:
        for shell in self._shells.values():
            shell.close()
        if self._postgresql:
            self._postgresql.close()
        for host in self._hosts:
            self._end_all(host)
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}br"], capture_output=True, check=False)

    def _connect(self) -> None:
        switch = f"{self._tag}br"
        _run("ip", "link", "add", switch, "type", "bridge")
        _run("ip", "link", "set", switch, "up")
        for number, host in enumerate(self._hosts, start=1):
            space, plug = self._space(host), f"{self._tag}p{number}"
            _run("ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", plug, "master", switch, "up")
            _run("ip", "-n", space, "addr", "add", f"10.0.0.{number}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")

    def _end_all(self, host: str) -> None:
        """Whatever runs in the namespace was started by the page."""
        deadline = time.monotonic() + 10
        while pids := subprocess.run(
            ["ip", "netns", "pids", self._space(host)], capture_output=True, text=True, check=False
        ).stdout.split():
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            assert time.monotonic() < deadline, f"{host} does not end: {pids}"

    def _space(self, host: str) -> str:
        return f"{self._tag}-{host}"


@contextmanager
def machines(hosts: Sequence[str], folder: Path) -> Iterator[Machines]:
    """Machines for one page."""
    made = Machines(hosts, folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
