"""Whom checks run as.

Lives here: the user of plugins and Lua. Never here: becoming that user (`cage`).
"""

from __future__ import annotations

import os
import pwd
from typing import Final, NamedTuple

from scale0.kernel.errors import ConfigError


class CheckUser(NamedTuple):
    """Whom checks run as."""

    uid: int
    gid: int


DEFAULT_USER: Final = "nobody"
NOBODY: Final = CheckUser(65_534, 65_534)
"""Where no user has that name."""


def user_of(name: str) -> CheckUser | None:
    """Whom checks run as: blank is nobody. None: as we are, because we are not root, or `root` was asked for."""
    if os.geteuid() != 0 or name == "root":
        return None
    try:
        found = pwd.getpwnam(name or DEFAULT_USER)
    except KeyError:
        if not name:
            return NOBODY
        raise ConfigError([f"plugin_user: there is no user {name}"]) from None
    return CheckUser(found.pw_uid, found.pw_gid)
