"""Two server keys at a time: the files of a rotation, a kill at any step, and the handshake for either key."""

# Promise: KEY-1, KEY-2
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scale0.broker.edge import server_rotation
from scale0.broker.edge.join_tokens import new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from scale0.broker.edge.server_rotation import (
    RECENT_SECONDS,
    PreviousKeyUsage,
    UsageOfPrevious,
    finish_rotation,
    read_server_pairs,
    read_usage,
    start_rotation,
    write_usage,
)
from scale0.cli.keys.rotation import rotate_server
from scale0.transport.edge.client_keys import ClientKeys
from scale0.transport.edge.curve_certificates import new_certificate, read_pair, write_pair

HERE = "tcp://127.0.0.1:5700"


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path)
    made.init()
    return made


def test_a_rotation_keeps_the_previous_pair_until_it_is_finished(folder: KeyFolder) -> None:
    before = folder.server().public
    pairs = start_rotation(folder)
    assert pairs.previous is not None
    assert (pairs.previous.public, pairs.current.public) == (before, folder.server().public)
    assert pairs.current.public != before
    assert read_server_pairs(folder) == pairs
    assert start_rotation(folder) == pairs, "a rotation that is under way is not started again"
    assert new_join_token(folder, "frontend", "", 60.0).server_key == pairs.current.public
    assert finish_rotation(folder) == before
    assert [pair.public for pair in read_server_pairs(folder).all] == [pairs.current.public]
    assert finish_rotation(folder) == ""


@pytest.mark.parametrize("step", range(6))
def test_after_a_kill_at_any_step_the_key_of_every_client_is_accepted(
    folder: KeyFolder, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients know the key of before, or one that was announced: the current one."""
    before, left = folder.server().public, step

    class Killed(BaseException):
        pass

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def step_of(*words: Any) -> Any:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return do(*words)

        return step_of

    for name in ("write_pair", "write_public", "sync_directory"):
        monkeypatch.setattr(server_rotation, name, counted(getattr(server_rotation, name)))
    try:
        start_rotation(folder)
    except Killed:
        pass
    accepted = [pair.public for pair in read_server_pairs(folder).all]
    assert before in accepted
    assert folder.server().public in accepted
    left = 99
    pairs = start_rotation(folder)
    assert [pair.public for pair in pairs.all] == [folder.server().public, before]


def test_the_previous_key_counts_as_used_for_an_hour_and_over_a_restart(folder: KeyFolder) -> None:
    usage = UsageOfPrevious(PreviousKeyUsage(previous="k"))
    usage.note("frontend/once", 100.0)
    usage.note_moved("frontend/new")
    users = ["backend/w", "frontend/new", "frontend/once", "peer/away"]
    seen = usage.seen([{"backend/w": 2}, {"backend/w": 1}], users, 200.0)
    assert (seen.moved, seen.unseen) == (["frontend/new"], ["peer/away"])
    assert seen.connections == {"backend/w": 3}
    assert seen.recent(200.0) == ["backend/w", "frontend/once"]
    assert seen.recent(100.0 + RECENT_SECONDS) == ["backend/w"], "it is connected"
    write_usage(folder, seen)
    assert read_usage(folder, "k") == seen
    assert read_usage(folder, "other").last_used == {}, "the usage of an earlier rotation does not count"
    again = UsageOfPrevious(read_usage(folder, "k")).seen([], users, 300.0)
    assert (again.last_used, again.moved, again.unseen) == (seen.last_used, seen.moved, seen.unseen)


def test_finish_refuses_while_the_previous_key_is_in_use_or_a_broker_is_away(folder: KeyFolder) -> None:
    previous = start_rotation(folder).previous
    assert previous is not None
    at = ["--data-dir", str(folder.path.parent)]
    for usage, words in (
        (PreviousKeyUsage(previous.public, time.time(), {}, {"frontend/x": time.time()}), "frontend/x"),
        (PreviousKeyUsage(previous.public, time.time(), {}, {}, [], ["frontend/old", "peer/east-2"]), "peer/east-2"),
    ):
        write_usage(folder, usage)
        refused = CliRunner().invoke(rotate_server, ["finish", *at])
        assert words in refused.output
        assert read_server_pairs(folder).previous is not None
    shown = CliRunner().invoke(rotate_server, ["status", *at])
    assert "frontend/old, peer/east-2" in shown.output
    assert CliRunner().invoke(rotate_server, ["finish", "--force", *at]).exit_code == 0
    assert read_server_pairs(folder).previous is None


def client_keys(path: Path, server_key: str, is_stored: bool = True) -> ClientKeys:
    write_pair(path, new_certificate(name="web", endpoint=HERE, **{"server-key": server_key}))
    return ClientKeys(read_pair(path), path, server_key, [HERE], is_stored)


def connects(keys: ClientKeys, endpoint: str = HERE) -> None:
    keys.mechanism(endpoint)


def test_a_client_stores_the_key_that_its_broker_announces(tmp_path: Path) -> None:
    old, new = new_certificate().public, new_certificate().public
    path = tmp_path / "web.key_secret"
    keys = client_keys(path, old)
    keys.learn(HERE, new)
    assert read_pair(path).metadata["server-key"] == old, "the broker has proved nothing yet"
    connects(keys)
    keys.learn("tcp://10.0.0.9:5700", new)
    assert read_pair(path).metadata["server-key"] == old, "another broker cannot replace it"
    keys.learn(HERE, "no key")
    assert read_pair(path).metadata["server-key"] == old
    keys.learn(HERE, new)
    assert read_pair(path).metadata == {"name": "web", "endpoint": HERE, "server-key": new}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_that_was_given_as_an_argument_is_learned_for_the_process_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = new_certificate().public, new_certificate().public
    path = tmp_path / "web.key_secret"
    keys = client_keys(path, old, is_stored=False)
    connects(keys)
    keys.learn(HERE, new)
    assert read_pair(path).metadata["server-key"] == old
    assert f"set server_key to {new}" in caplog.text
