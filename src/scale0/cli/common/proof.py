"""Which brokers commands connect to: one that proves its key, or without keys one of this machine that this user or
root runs, or any other with `--insecure`.

Invariants: nothing is sent to another user's process that listens where a broker of ours did, also when a running
command reconnects; no password and no token is sent to another machine without keys.
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
    """Raise an error unless a command may connect to this endpoint; waits so long for a broker that starts. The same is
    checked at each connection that this process makes without keys from now on."""
    from scale0.errors import Unreachable
    from scale0.transport.edge.client_keys import find_keys, refuse_unencrypted

    end = time.monotonic() + patience
    while find_keys([endpoint]) is None:
        try:
            is_permitted = check_listener(endpoint, with_secret)
        finally:
            refuse_unencrypted(_refusal_of_secrets if with_secret else _refusal)
        if is_permitted:
            return
        if time.monotonic() >= end:
            raise Unreachable(codes.UNREACHABLE, f"{endpoint} cannot be reached")
        time.sleep(POLL_SECONDS)


def check_listener(endpoint: str, with_secret: bool) -> bool:
    """True if a command may connect there without keys, False if nobody listens there; raises CommandError if it may
    not."""
    from scale0.transport.edge.listeners import users_at

    users = users_at(host_of(endpoint), int(endpoint.rpartition(":")[2]))
    if os.environ.get(KEY) == NO_KEYS and not (with_secret and users is None):
        return True
    if users is None:
        raise _unproved(endpoint, "tokens and passwords are" if with_secret else "without --insecure, commands are")
    if users - {os.getuid(), ROOT}:
        raise _unproved(endpoint, "another user listens there, and commands are")
    return bool(users)


def _refusal(endpoint: str, with_secret: bool = False) -> str:
    try:
        check_listener(endpoint, with_secret)
    except errors.CommandError as error:
        return str(error)
    return ""


def _refusal_of_secrets(endpoint: str) -> str:
    return _refusal(endpoint, with_secret=True)


def _unproved(endpoint: str, what: str) -> errors.CommandError:
    return errors.CommandError(
        f"no key is known for {endpoint}: {what} sent to proven brokers only",
        "join it: scale0 keys join frontend HOST --token -, with a token of `scale0 token frontend`",
        errors.USAGE,
    )
