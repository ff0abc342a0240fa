"""An agent typed by a person with `openssl s_client` alone (PROTOCOL 10)."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.waiting import until
from tests.wire.monitoring.network import Network, answer, unique

pytestmark = pytest.mark.processes


class Terminal:
    """`openssl s_client`, typed into."""

    def __init__(self, network: Network, name: str, *options: str) -> None:
        helen = network.helen
        files = helen.certificate(name)
        self._process = subprocess.Popen(
            ["openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{helen.port}", "-verify_return_error",
             "-CAfile", str(helen.files / "ca.pem"), "-cert", str(files.certificate), "-key", str(files.key),
             *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._buffer = b""

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def read(self) -> str:
        """The next line on the screen."""
        assert self._process.stdout is not None
        end = time.monotonic() + 10
        while b"\n" not in self._buffer:
            ready = select.select([self._process.stdout], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"nothing came but {self._buffer!r}"
            more = os.read(self._process.stdout.fileno(), 65_536)
            assert more, f"it ended after {self._buffer!r}"
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def ended(self) -> bool:
        """True when s_client ends by itself, because Helen closed."""
        self._process.wait(10)
        return True

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


Terminals = Callable[..., Terminal]


@pytest.fixture
def terminal(network: Network) -> Iterator[Terminals]:
    made: list[Terminal] = []

    def make(name: str, *options: str) -> Terminal:
        made.append(Terminal(network, name, *options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("options", [(), ("-crlf",)], ids=["newline", "crlf"])
def test_a_person_can_be_an_agent_of_version_1(network: Network, terminal: Terminals, options: tuple[str, ...]) -> None:
    """With -crlf every line ends so, that of the blob too: its own bytes are still those of its header."""
    name = unique("typed")
    screen = terminal(name, *options)
    screen.type("hello 1 me/1")
    until(lambda: network.knows(name))
    asked = network.start("helen.check", agent=name, check="disk", args={"path": "/"})
    command, check, number, length = screen.read().split(" ")
    assert (command, check, length) == ("check", "disk", "13")
    assert screen.read() == '{"path": "/"}'
    screen.type(f"result {number} disk 34")
    screen.type('{"state":"ok","message":"by hand"}')
    assert answer(asked)["message"] == "by hand"


def test_a_person_can_be_an_agent_of_version_2(network: Network, terminal: Terminals) -> None:
    screen = terminal(unique("typed"))
    screen.type("hello 2 me/1")
    assert screen.read() == "accepted 30"
    assert screen.read().startswith("schedule 1 ")
    assert screen.read().startswith('{"version":')
    screen.type("ping 12")
    assert screen.read() == "pong 12"
    screen.type("report 1 disk 34")
    screen.type('{"state":"ok","spool":"me","n": 1}')
    assert screen.read() == "ack 1"
    screen.type("fetch 3 stage0")
    assert screen.read() == "file 3 stage0 0"
    assert screen.read() == ""


def test_a_typing_error_is_answered_and_ends_it(network: Network, terminal: Terminals) -> None:
    screen = terminal(unique("typed"))
    screen.type("helo 1 me/1")
    assert screen.read().startswith("error ")
    assert screen.ended()
