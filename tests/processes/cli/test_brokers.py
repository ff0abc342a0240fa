"""A network of brokers, from the shell: joining, looking, and changing its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

PATIENCE_SECONDS = 30.0


class Net(NamedTuple):
    """Two brokers of the east, one of the west; and a shell that asks the first."""

    shell: Shell
    brokers: dict[str, BrokerProcess]

    def at(self, name: str) -> tuple[str, ...]:
        """Which broker to ask, and by which right."""
        broker = self.brokers[name]
        place = broker.address()
        return ("--join", place, "--data-dir", str(broker.config["data_dir"]))

    def place(self, name: str) -> tuple[str, ...]:
        return self.at(name)[:2]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    folder = tmp_path_factory.mktemp("net")
    with ExitStack() as stack:
        first = stack.enter_context(
            broker_process(folder / "a", identity="east-1", group="east", config_service=True, fallback_groups=["west"])
        )
        brokers = {"east-1": first}
        for name in ("east-2", "west-1"):
            group = name.partition("-")[0]
            peers = [first.endpoints["peer"]]
            brokers[name] = stack.enter_context(
                broker_process(folder / name, identity=name, group=group, peers=peers, state="joining")
            )
        made = Net(Shell(folder), brokers)

        def joined() -> bool:
            return all(
                {row["state"] for row in seen(made, name)} == {"active"} and len(seen(made, name)) == 3
                for name in brokers
            )

        until(joined)
        yield made


def seen(net: Net, by: str) -> list[dict[str, Any]]:
    done = net.shell.run("peers", *net.place(by), "--json")
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def test_every_broker_shows_all_of_them_itself_first(net: Net):
    for name in net.brokers:
        rows = seen(net, name)
        assert rows[0]["broker"] == name
        assert {row["broker"] for row in rows} == set(net.brokers)
    shown = net.shell.run("peers", *net.place("east-1")).stdout.splitlines()
    assert [line.split()[:3] for line in shown[1:]] == [
        ["east-1", "east", "active"],
        ["east-2", "east", "active"],
        ["west-1", "west", "active"],
    ]


def test_groups_are_summed_up(net: Net):
    rows = net.shell.json("groups", *net.place("east-2"))
    assert [(row["group"], row["brokers"], row["active"]) for row in rows] == [
        ("east", ["east-1", "east-2"], 2),
        ("west", ["west-1"], 1),
    ]


def test_the_network_is_drawn(net: Net):
    drawn = net.shell.run("topology", *net.place("west-1")).stdout.splitlines()
    assert drawn[0] == "west"
    assert drawn[1].startswith("└─ west-1: active")
    assert drawn[1].endswith("<- connected")
    assert [line[:9] for line in drawn[2:]] == ["east", "├─ east-1", "└─ east-2"]


def test_status_without_a_token_is_of_the_broker_that_was_asked(net: Net):
    found = net.shell.json("status", *net.place("east-2"))
    assert (found["broker"], found["group"]) == ("east-2", "east")


def test_a_change_is_everywhere_and_is_shown_and_taken_back(net: Net):
    def version(name: str) -> int:
        # While brokers differ, status says so with its exit code, too.
        return int(json.loads(net.shell.run("status", "--json", *net.at(name)).stdout)["config_version"])

    before = version("east-1")
    assert "nothing was changed" in net.shell.refuses(
        "config", "set", "heartbeat_liveness=4", "--expect", str(before + 5), *net.at("east-1")
    )
    done = net.shell.json("config", "set", "heartbeat_liveness=4", "--expect", str(before), *net.at("east-1"))
    assert done["version"] == before + 1
    until(lambda: all(version(name) == before + 1 for name in net.brokers))
    diff = net.shell.run("config", "diff", str(before), *net.at("west-1"))
    assert diff.returncode in (1, 2), "west-1 may never have had the one before"
    diff = net.shell.run("config", "diff", str(before), *net.at("east-1"))
    assert (diff.returncode, diff.stdout) == (1, "- heartbeat_liveness = 3\n+ heartbeat_liveness = 4\n")
    net.shell.json("config", "rollback", str(before), *net.at("east-1"))
    same = net.shell.run("config", "diff", str(before), *net.at("east-1"))
    assert (same.returncode, same.stdout) == (0, "")
    until(lambda: all(version(name) == before + 2 for name in net.brokers))
    shown = json.loads(net.shell.run("config", "show", "--version", str(before + 1), *net.at("east-1")).stdout)
    assert shown["heartbeat_liveness"] == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("set", "heartbeat_liveness=-1"), "heartbeat_liveness"),
        (("set", "heartbeat_livenes=3"), "heartbeat_liveness"),
        (("set",), "give a change"),
        (("set", "a"), "KEY=VALUE"),
        (("set", "--remove", "services.nobody"), "nothing to remove"),
        (("rollback", "999999"), "not in the history"),
        (("diff", "999999"), "not in the history"),
    ],
)
def test_a_wrong_change_is_reported_and_changes_nothing(net: Net, words: tuple[str, ...], reason: str):
    before = net.shell.json("config", "show", *net.at("east-1"))["hash"]
    done = net.shell.run("config", *words, *net.at("east-1"))
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert net.shell.json("config", "show", *net.at("east-1"))["hash"] == before


def test_the_whole_document_can_be_given_as_a_file(net: Net, tmp_path: Path):
    file = tmp_path / "network.json"
    file.write_text(net.shell.run("config", "show", *net.at("east-1")).stdout)
    text = json.loads(file.read_text())
    text["services"] = [{"name": "hello", "timeout": 5}]
    file.write_text(json.dumps(text))
    done = net.shell.json("config", "set", "--file", str(file), "--expect", str(text["version"]), *net.at("east-1"))
    assert done["version"] == text["version"] + 1
    again = net.shell.run("config", "set", "--file", str(file), "--expect", str(text["version"]), *net.at("east-1"))
    assert again.returncode == 1


def test_a_broker_alone_says_how_another_joins(tmp_path: Path):
    with broker_process(tmp_path / "alone", identity="alone") as broker:
        place = broker.address()
        done = Shell(tmp_path).run("peers", "--join", place)
        assert "scale0 broker --join" in done.stderr
        assert "for example" in Shell(tmp_path).refuses("broker", "--join", "not an address", status=2)
