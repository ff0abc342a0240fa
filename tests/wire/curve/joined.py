"""Brokers that joined each other by token, and programs that enrolled at one of them.

Lives here: how a network with keys is made. Never here: what is expected of it. Invariant: nothing is copied by hand
between the folders of two brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import scale0
from scale0.broker.edge.join_tokens import join_peer, new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.curve_certificates import new_certificate, write_pair
from scale0.transport.edge.joining import enrol
from tests.fakes.waiting import until
from tests.wire.curve.hands import Lock, Pair, locked

TOGETHER = {"group": "east", "default_heartbeat_interval": 0.5}


@contextmanager
def network(folder: Path, *names: str, **more: dict[str, Any]) -> Iterator[list[Lock]]:
    """The first one is there; each of the others joins the one before it, by token. `more`: for one of them."""
    with ExitStack() as stack:
        locks: list[Lock] = []
        for name in names:
            own: dict[str, Any] = {"identity": name, **TOGETHER, **more.get(name.replace("-", "_"), {})}
            if locks:
                at = locks[-1]
                token = new_join_token(KeyFolder(at.folder.parent), "peer", name, 60.0)
                assert join_peer(at.broker.endpoints["peer"], token, name, KeyFolder(folder / name / "data"))
                own |= {"state": "joining", "peers": [at.broker.endpoints["peer"]]}
            else:
                own["config_service"] = True
            locks.append(stack.enter_context(locked(folder / name, **own)))
        until(lambda: all(knows_all(lock, names) for lock in locks))
        yield locks


def knows_all(lock: Lock, names: tuple[str, ...]) -> bool:
    with client_of(lock) as client:
        states = {row["broker"]: row["state"] for row in client.brokers()}
    return all(states.get(name) in ("active", "standby") for name in names)


def client_of(lock: Lock, key: Path | None = None, **more: Any) -> scale0.Client:
    """A client at one broker, by the key of programs there or by one of its own."""
    return scale0.Client(
        lock.broker.endpoints["frontend"], key=key or lock.folder / "local" / "frontend.key_secret", **more
    )


def enrolled(lock: Lock, role: str, name: str) -> Path:
    """A program's pair, that one broker let in by token."""
    token = new_join_token(KeyFolder(lock.folder.parent), role, name, 60.0)
    pair = new_certificate(name=name, role=role, **{"server-key": token.server_key})
    path = lock.folder.parent.parent / f"{name}.key_secret"
    write_pair(path, pair)
    enrol(lock.broker.endpoints[role], token, name, pair.public)
    return path


def pair_in(file: Path) -> Pair:
    """Both halves, for a raw socket."""
    from zmq.auth import load_certificate

    public, secret = load_certificate(file)
    assert secret is not None
    return Pair(public, secret)
