"""The folder `keys/told` of a broker: replicated keys of other brokers, kept over a restart.

    keys/told/BROKER.json           the rows of one broker, and which of its keys are gone

Only the broker writes here; commands read. Invariant: a file is complete or absent; an unreadable file counts as
absent.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from scale0.broker.cluster.key_replication import Snapshot
from scale0.broker.cluster.replicated_keys import KeySource
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.log_context import about
from scale0.kernel.names import is_identity

log = logging.getLogger("scale0.keys")

REPLICATED: Final = "told"
ENDING: Final = ".json"


def read_replicated_keys(keys: Path) -> dict[str, KeySource]:
    out = {}
    for path in sorted((keys / REPLICATED).glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        try:
            source = msgspec.json.decode(path.read_bytes(), type=KeySource)
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            log.warning(
                "%s: cannot read replicated keys, ignoring this file: %s", path, error, extra=about(file=str(path))
            )
            continue
        if is_identity(name) and all(row.is_valid for row in source.rows.values()):
            out[name] = source
    return out


def write_replicated_keys(keys: Path, replicated: Snapshot, changed: Collection[str]) -> None:
    """Store the rows of these brokers; the file of a broker without rows is removed."""
    for name in changed:
        path = keys / REPLICATED / f"{name}{ENDING}"
        source = replicated.get(name)
        if source is None:
            path.unlink(missing_ok=True)
        else:
            write_secret(path, msgspec.json.encode(source).decode())
