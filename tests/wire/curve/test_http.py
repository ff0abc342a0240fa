"""The HTTP server beside a broker that wants keys: a client like any, with a key of its own and no more rights.

Promise: CURVE-1, CURVE-2
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from scale0.broker.edge.key_folder import KeyFolder
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.curve.hands import Lock, locked

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def status(site: str, token: str | None) -> int:
    """Of a question that only the broker can answer; 0: there is no server."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    try:
        asked = httpx.get(f"{site}/api/v1/tokens", headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)
        return asked.status_code
    except httpx.ConnectError:
        return 0


def test_a_key_of_zeromq_is_no_way_around_a_token_and_a_server_without_its_key_gets_nowhere(tmp_path: Path) -> None:
    site = f"http://127.0.0.1:{(port := free_port())}"
    with locked(tmp_path, management={"enabled": True, "port": port}, default_heartbeat_interval=1) as lock:
        token = (lock.folder.parent / "token").read_text()
        until(lambda: status(site, None) != 0)
        for nobody in (None, "x", "s0_" + "0" * 64, key_text(lock)):
            assert status(site, nobody) == 401
        assert status(site, token) == 200
        KeyFolder(lock.folder.parent).revoke("frontend", "management")
        until(lambda: status(site, token) in (502, 503, 504))


def key_text(lock: Lock) -> str:
    """What a thief of the server's own key could show."""
    return (lock.folder / "local" / "management.key_secret").read_text().split('secret-key = "')[1][:40]
