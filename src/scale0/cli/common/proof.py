"""Which brokers commands connect to: one that proves its key, or without keys one of this machine that this user or
root runs, or any other with `--insecure`.

Invariants: nothing is sent to another user's process that listens where a broker of ours did; no password and no
token is sent to another machine without keys.
"""

from __future__ import annotations

import os
import time
from typing import Final

from scale0.cli.common import errors
from scale0.cli.common.endpoints import KEY, NO_KEYS, host_of
from scale0.kernel import codes

POLL_SECONDS: Final = 0.05
ROOT: Final = 0
"""This user can read all of our files."""


def require_proof(endpoint: str, patience: float, with_secret: bool = False) -> None:
    """Raise an error unless a command may connect to this endpoint; waits so long for a broker that starts."""
    from scale0.errors import Unreachable
    from scale0.transport.edge.client_keys import find_keys
    from scale0.transport.edge.listeners import users_at

    host, port = host_of(endpoint), int(endpoint.rpartition(":")[2])
    end = time.monotonic() + patience
    while find_keys([endpoint]) is None:
        users = users_at(host, port)
        if os.environ.get(KEY) == NO_KEYS and not (with_secret and users is None):
            return
        if users is None:
            raise _unproved(endpoint, "tokens and passwords are" if with_secret else "without --insecure, commands are")
        if users - {os.getuid(), ROOT}:
            raise _unproved(endpoint, "another user listens there, and commands are")
        if users:
            return
        if time.monotonic() >= end:
            raise Unreachable(codes.UNREACHABLE, f"{endpoint} cannot be reached")
        time.sleep(POLL_SECONDS)


def _unproved(endpoint: str, what: str) -> errors.CommandError:
    return errors.CommandError(
        f"no key is known for {endpoint}: {what} sent to proven brokers only",
        "join it: scale0 keys join frontend HOST --token -, with a token of `scale0 token frontend`",
        errors.USAGE,
    )
