"""Who may read what lies on disk: closed from the first moment, and closed or refused where somebody opened it.

Promise: SEC-3
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from scale0.broker.main.preflight import check_broker_files, holds_secret
from scale0.config import AdminConfig, BrokerConfig
from scale0.kernel.edge.private_files import check, closed
from scale0.kernel.errors import ConfigError
from tests.fakes.processes import background
from tests.fakes.shell import Shell

OPEN = 'umask 000; exec "$@"'
FOR_A_GROUP = 0o640
"""Segments may be read by a group, whose way to them is their folder's."""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.processes
@pytest.mark.slow
def test_what_a_network_leaves_on_disk_is_its_owner_s_alone(tmp_path: Path) -> None:
    """Under the most generous umask: a broker, its HTTP server, Helen and an agent, from the first start to the end."""
    shell = Shell(tmp_path)
    words = ["sh", "-c", OPEN, "sh", sys.executable, "-m", "scale0", "up"]
    with background(words, tmp_path, shell.environment) as up:
        up.wait_for("Helen monitors this machine")
        up.signal(signal.SIGINT)
        assert up.wait() == 0, up.output
    folder = tmp_path / ".scale0"
    assert mode_of(folder) == 0o700
    found = [path for path in folder.rglob("*") if not path.is_symlink()]
    assert {"token", "scale0.db", "segments.json", "ca-key.pem", "agent-key.pem", "helen.json"} <= {
        p.name for p in found
    }
    open_to_all = {f"{path.relative_to(folder)} {mode_of(path):o}" for path in found if mode_of(path) & stat.S_IRWXO}
    assert open_to_all == set()
    to_a_group = {path for path in found if mode_of(path) & stat.S_IRWXG}
    assert {path for path in to_a_group if "segments" not in path.parts} == set()


@pytest.mark.processes
def test_a_broker_does_not_start_in_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    assert f"chmod 700 {data}" in Shell(tmp_path).refuses(
        "broker", "--data-dir", str(data), "--frontend-port", "0", status=2
    )
    assert list(data.iterdir()) == []


def test_a_file_that_was_opened_is_closed_and_a_line_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("token", "scale0.db", "segments.json", "key.pem"):
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(0o664)
    with caplog.at_level(logging.WARNING):
        check(tmp_path, [tmp_path / "key.pem", tmp_path / "missing.pem"])
    assert {mode_of(tmp_path / name) for name in ("token", "scale0.db", "segments.json")} == {0o600}
    assert mode_of(tmp_path / "key.pem") == 0o640, "a group that may read a certificate's key goes on to"
    assert len(caplog.messages) == 4
    assert all("was accessible to others" in line for line in caplog.messages)
    caplog.clear()
    check(tmp_path, [tmp_path / "key.pem"])
    assert caplog.messages == []


def test_a_file_that_cannot_be_closed_is_a_reason_not_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key.pem"
    path.write_text("secret")
    path.chmod(0o644)

    def not_ours(*_: object) -> None:
        raise PermissionError("it is another's")

    monkeypatch.setattr(os, "chmod", not_ours)
    assert closed(path, 0o077) == [f"{path}: others have access to it (mode 644): chmod 600 {path}"]
    with pytest.raises(ConfigError, match="others have access"):
        check(tmp_path, [path])


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        (BrokerConfig(), False),
        (BrokerConfig(segments="s3://bucket/x"), False),
        (BrokerConfig(segments="s3://KEY:SECRET@bucket/x"), True),
        (BrokerConfig(store="postgresql://me:pa55@db/x", group="east"), True),
        (BrokerConfig(store="postgresql://db/x?password=pa55", group="east"), True),
        (BrokerConfig(admins=(AdminConfig(auth_id="ada", password_hash="$argon2id$x"),)), True),
    ],
)
def test_a_broker_s_file_is_closed_only_if_it_holds_a_secret(
    tmp_path: Path, config: BrokerConfig, secret: bool
) -> None:
    file = tmp_path / "broker.json"
    file.touch(0o644)
    file.chmod(0o644)
    assert holds_secret(config) is secret
    check_broker_files(BrokerConfig(data_dir=str(tmp_path / "data")), file)
    assert mode_of(file) == 0o644
    from msgspec.structs import replace

    check_broker_files(replace(config, data_dir=str(tmp_path / "data")), file)
    assert mode_of(file) == (FOR_A_GROUP if secret else 0o644)
