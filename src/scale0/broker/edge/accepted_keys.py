"""The keys that a broker accepted last, in a file beside its key folder: a start compares the folder with them.

    accepted-keys.json              in `data_dir`; the keys of the broker's own files, without tokens

Invariants: the list contains no secret; keys whose files vanish or become invalid together are accepted until an
operator confirms that they are gone, over restarts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from scale0.broker.core.keys import Key, is_name
from scale0.broker.core.permissions import rules_error
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.errors import ConfigError
from scale0.transport.core.sockets import ROLES
from scale0.transport.edge.curve_certificates import is_key

ACCEPTED: Final = "accepted-keys.json"
MASS_KEYS: Final = 4
"""If at least so many keys, and more than half, vanish at once without `revoke`, an operator must confirm it."""
MASS_OF_A_ROLE: Final = 2
"""The same for so many keys, if they are all keys of a role. One file may be removed by hand."""


class AcceptedKeys(msgspec.Struct, frozen=True):
    keys: tuple[Key, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """Role and name of those whose files vanished together and are not confirmed."""


def accepted_file(data_dir: Path) -> Path:
    return data_dir / ACCEPTED


def read_accepted(data_dir: Path) -> AcceptedKeys | None:
    """The list, or None if there is none. Raises ConfigError."""
    path = accepted_file(data_dir)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=AcceptedKeys)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError([_unusable(path, str(error))]) from error
    if not all(_is_valid(key) for key in found.keys):
        raise ConfigError([_unusable(path, "it contains a key that is not valid")])
    return found


def write_accepted(data_dir: Path, accepted: AcceptedKeys) -> None:
    write_secret(accepted_file(data_dir), msgspec.json.encode(accepted))


def is_mass(lost: Collection[Key], stored: Collection[Key]) -> bool:
    """True if a lost directory or mount is more likely than a decision."""
    if len(lost) >= MASS_KEYS and 2 * len(lost) > len(stored):
        return True
    roles = Counter(key.role for key in stored)
    return any(n >= MASS_OF_A_ROLE and n == roles[role] for role, n in Counter(key.role for key in lost).items())


def _is_valid(key: Key) -> bool:
    valid = is_key(key.public) and key.role in ROLES and is_name(key.name) and not key.is_token
    return valid and not rules_error(key.role, key.rules) and (not key.previous or is_key(key.previous))


def _unusable(path: Path, reason: str) -> str:
    return (
        f"{path}: cannot read the list of accepted keys: {reason}. If all files of keys are in place, delete it;"
        " otherwise restore it"
    )
