"""Who listens where: what the page says, and nothing else. Each program runs in a network that nobody else is in.

Promise: SEC-1
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.docs import pages
from tests.fakes.namespaces import Namespaces, run
from tests.fakes.processes import Background, background, scale0_command
from tests.fakes.shell import EXAMPLES, Shell
from tests.processes.packaging.sockets import listeners, owned

pytestmark = [pytest.mark.processes, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
NOWHERE = "-"
ANY = "any"

Place = tuple[str, int]


def documented() -> dict[str, set[Place]]:
    """By program, the addresses and ports of the page; Spark's, which are any, are looked at where Spark is tested."""
    text = PAGE.split("\n## Who listens where\n")[1].split("\n## ")[0]
    found: dict[str, set[Place]] = {}
    for cells in pages.table_rows(text):
        if len(cells) == 4 and pages.words(cells[0]) and cells[2] != ANY:
            places = found.setdefault(pages.words(cells[0])[0], set())
            if cells[2] != NOWHERE:
                places.add((pages.words(cells[1])[0], int(cells[2])))
    return found


class Space:
    """A host with nothing but loopback, and an address on it that is not: what binds to all shows itself."""

    def __init__(self) -> None:
        self.hosts = Namespaces(["sockets"])

    @contextmanager
    def running(self, shell: Shell, *words: str) -> Iterator[Background]:
        """`scale0 WORDS...` in there, once it is ready."""
        command = [*self.hosts.inside("sockets"), *scale0_command(*words)]
        with background(command, shell.folder, shell.environment) as program:
            program.wait_for("ready")
            yield program


@pytest.fixture
def space() -> Iterator[Space]:
    made = Space()
    made.hosts.up()
    run("ip", "-n", made.hosts.namespace("sockets"), "addr", "add", "10.77.0.1/32", "dev", "lo")
    yield made
    made.hosts.down()


def places(pid: int) -> set[Place]:
    """Where a process and all that it started listen; `ip netns exec` becomes what it runs."""
    mine = owned([pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))])
    return {(one.address, one.port) for one in listeners(pid) if one.inode in mine}


def everyone(program: Background) -> set[Place]:
    """Where anybody in that network listens."""
    return {(one.address, one.port) for one in listeners(program.process.pid)}


def test_up_and_those_who_join_it_listen_where_the_page_says(tmp_path: Path, space: Space) -> None:
    shell, page = Shell(tmp_path), documented()
    with space.running(shell, "up") as up:
        up.wait_for("Helen monitors this machine")
        assert places(up.process.pid) == page["scale0 up"] == everyone(up)
        with space.running(shell, "worker", str(EXAMPLES / "hello_worker.py")) as worker:
            assert places(worker.process.pid) == page["scale0 worker"] == set()
        agent, helen = (up_child(up, role) for role in ("stage0", "helen.json"))
        assert {p for p in places(up.process.pid) if p[1] == 4166} == places(helen.pid) == page["scale0 helen"]
        assert places(agent.pid) == page["scale0 agent"] == set()


def test_a_broker_alone_listens_where_the_page_says(tmp_path: Path, space: Space) -> None:
    shell, page = Shell(tmp_path), documented()
    file = tmp_path / "broker.json"
    file.write_text(json.dumps({"identity": "b", "state": "active", "data_dir": str(tmp_path / "data")}))
    with space.running(shell, "broker", "--config", str(file)) as broker:
        assert places(broker.process.pid) == page["scale0 broker"] == everyone(broker)
        with space.running(shell, "management", "serve", "--data-dir", str(tmp_path / "data")) as server:
            assert places(server.process.pid) == page["scale0 management serve"]
        assert everyone(broker) == page["scale0 broker"]


def up_child(up: Background, word: str) -> psutil.Process:
    """The process that `scale0 up` started with this word on its command line."""
    for child in psutil.Process(up.process.pid).children(recursive=True):
        if any(word in part for part in child.cmdline()):
            return child
    raise AssertionError(f"up has started no {word}")


def test_the_page_says_of_every_program_that_stays_where_it_listens() -> None:
    assert set(documented()) == {
        *("scale0 up", "scale0 broker", "scale0 worker", "scale0 helen", "scale0 agent", "scale0 management serve"),
    }
