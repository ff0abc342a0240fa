"""Where pages are typed: shells on machines of their own, or on this one as it is.

Machines of their own are network namespaces with host names; they need root and iproute2. Default ports are free there,
and nothing leads out. This module imports only the standard library, since it runs on machines that have nothing else.
Whatever was started is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.docs.blocks import REPOSITORY, Page
from tests.fakes.namespaces import Namespaces

if TYPE_CHECKING:
    from tests.docs.servers import Postgresql

KEPT: Final = ("JAVA_HOME", "LANG", "SPARK_HOME")
NOT_COPIED: Final = shutil.ignore_patterns("node_modules", "__pycache__", ".*")
DONE: Final = "-*- done:"
COMMAND_SECONDS: Final = 500.0
"""Spark, on a machine that has other things to do."""
END_SECONDS: Final = 10.0


class Overdue(Exception):
    """A command printed this and went on."""


def whole_lines(printed: bytes) -> list[str]:
    return printed.decode(errors="replace").split("\n")[:-1]


class Shell:
    """A bash that is given commands one after the other, and tells what they print."""

    def __init__(self, entering: Sequence[str], home: Path, script: Path) -> None:
        self._script = script
        self._logs = itertools.count(1)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{REPOSITORY / '.venv-node' / 'bin'}:{os.environ.get('PATH', '')}",
            "HOME": str(home),
            "COLUMNS": "110",
            "TERM": "dumb",
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONUNBUFFERED": "1",
            # Where nothing leads out, npm has what `make setup` had it fetch.
            "npm_config_cache": str(Path.home() / ".npm"),
            "npm_config_prefer_offline": "true",
            **{name: os.environ[name] for name in KEPT if name in os.environ},
        }
        words = [*entering, "bash", "--noprofile", "--norc"]
        self._process = subprocess.Popen(
            words, cwd=home, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._printed = b""
        self.run("trap : KILL TERM")  # bash would say of a job that it was killed, in the midst of something else

    def run(self, command: str) -> tuple[list[str], int]:
        """Type a command, and wait for its end: what it printed, and its exit status."""
        self.type(command)
        return self.wait()

    def start(self, command: str) -> Path:
        """Type a command that ends with `&`: a job of this shell. What it prints goes to a file of its own."""
        log = self._script.with_suffix(f".{next(self._logs)}")
        self.run(f"{{ {command}\n}} >{log} 2>&1")
        return log

    def type(self, command: str) -> None:
        """Type a command. Its input is empty: what a page types is all that there is."""
        self._script.write_text(command + "\n", encoding="utf-8")
        self._say(f'. {self._script} </dev/null; printf "\\n{DONE}%s\\n" $?\n')

    def wait(self, seconds: float = COMMAND_SECONDS) -> tuple[list[str], int]:
        """Wait for the end of the command that is under way."""
        lines = self.read_until(lambda lines: bool(lines) and lines[-1].startswith(DONE), seconds)
        self.forget()
        status = int(lines.pop().removeprefix(DONE))
        while lines and not lines[-1]:
            lines.pop()
        return lines, status

    def read_until(self, is_enough: Callable[[list[str]], bool], seconds: float) -> list[str]:
        """The whole lines that the command has printed, once they are enough."""
        deadline = time.monotonic() + seconds
        while not is_enough(lines := whole_lines(self._printed)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Overdue("\n".join(lines))
            for key, _ in self._selector.select(left):
                more = os.read(key.fd, 1 << 16)
                assert more, "the shell has ended: " + "\n".join(lines)
                self._printed += more
        return lines

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


class Here:
    """This machine as it is, for an ordinary user: it should have the name that the page shows, and its ports free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def up(self) -> None:
        pass

    def entering(self, host: str) -> list[str]:
        return []

    def pids(self, host: str) -> list[str]:
        """By their home, which nobody else has."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # another user's, or gone
                if f"HOME={self._folder / host}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(process.name)
        return found

    def down(self) -> None:
        pass


class Network:
    """Hosts on one switch, each a network namespace."""

    def __init__(self, hosts: Sequence[str], folder: Path, has_postgresql: bool) -> None:
        self._spaces = Namespaces(hosts)
        self._hosts = hosts
        self._names = folder / "hosts"
        self._has_postgresql = has_postgresql
        self._postgresql: Postgresql | None = None

    def up(self) -> None:
        names = [f"{self._spaces.address(host)} {host}" for host in self._hosts]
        known = names if len(names) > 1 else [f"127.0.0.1 {self._hosts[0]}"]
        self._names.write_text("\n".join(["127.0.0.1 localhost", *known]) + "\n", encoding="ascii")
        self._spaces.up()
        if self._has_postgresql:
            from tests.docs.servers import Postgresql

            self._postgresql = Postgresql(self._spaces.inside(self._hosts[0]))

    def entering(self, host: str) -> list[str]:
        found = f'export PATH="{self._postgresql.programs}:$PATH" && ' if self._postgresql else ""
        # In namespaces of its own.
        named = f'hostname {host} && mount --bind {self._names} /etc/hosts && {found}exec "$@"'
        return [*self._spaces.inside(host), "unshare", "--uts", "sh", "-c", named, "sh"]

    def pids(self, host: str) -> list[str]:
        listed = ["ip", "netns", "pids", self._spaces.namespace(host)]
        return subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()

    def down(self) -> None:
        if self._postgresql:
            self._postgresql.close()
        self._spaces.down()


class Machines:
    """The hosts of a page, with a home and shells on each."""

    def __init__(self, page: Page, folder: Path, place: Here | Network) -> None:
        self._page = page
        self._folder = folder
        self._place = place
        self._shells: dict[tuple[str, str], Shell] = {}

    def shell(self, host: str, name: str) -> Shell:
        """A shell on a host (the first, if none is named), opened when it is first used."""
        host = host or self._page.hosts[0]
        if (host, name) not in self._shells:
            script = self._folder / f"{host}-{len(self._shells)}.sh"
            self._shells[host, name] = Shell(self._place.entering(host), self.home(host), script)
        return self._shells[host, name]

    def home(self, host: str) -> Path:
        """Where its shells begin."""
        return self._folder / (host or self._page.hosts[0])

    def up(self) -> None:
        for host in self._page.hosts:
            if self._page.folder:
                shutil.copytree(REPOSITORY / self._page.folder, self.home(host), ignore=NOT_COPIED)
            else:
                self.home(host).mkdir()
        self._place.up()

    def down(self) -> None:
        for shell in self._shells.values():
            shell.close()
        deadline = time.monotonic() + END_SECONDS
        for host in self._page.hosts:
            while pids := self._place.pids(host):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                assert time.monotonic() < deadline, f"{host} does not end: {pids}"
        self._place.down()


@contextmanager
def machines(page: Page, folder: Path, *, here: bool = False) -> Iterator[Machines]:
    made = Machines(page, folder, Here(folder) if here else Network(page.hosts, folder, page.has_postgresql))
    try:
        made.up()
        yield made
    finally:
        made.down()
