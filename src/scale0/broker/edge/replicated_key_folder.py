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

TOLD: Final = "told"
ENDING: Final = ".json"


def read_told(keys: Path) -> dict[str, KeySource]:
    out = {}
    for path in sorted((keys / TOLD).glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        try:
            teller = msgspec.json.decode(path.read_bytes(), type=KeySource)
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            log.warning("%s: nothing is believed of it: %s", path, error, extra=about(file=str(path)))
            continue
        if is_identity(name) and all(row.is_sound for row in teller.rows.values()):
            out[name] = teller
    return out


def write_told(keys: Path, told: Snapshot, changed: Collection[str]) -> None:
    """Store the rows of these brokers; the file of a broker without rows is removed."""
    for name in changed:
        path = keys / TOLD / f"{name}{ENDING}"
        teller = told.get(name)
        if teller is None:
            path.unlink(missing_ok=True)
        else:
            write_secret(path, msgspec.json.encode(teller).decode())
