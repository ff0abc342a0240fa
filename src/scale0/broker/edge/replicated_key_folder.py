"""The folder `keys/told` of a broker: what other brokers told of their keys, so that it is known after a restart.

    keys/told/BROKER.json           the rows of one broker, and which of its keys are gone

Lives here: these files. Never here: whether anybody is let in for it (`broker.cluster.replicated_keys`). Only the
broker writes here; the commands read. Invariant: a file is whole, or is not there; one that cannot be read counts as
nothing told.
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
    """What each broker told, as it was stored last."""
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
    """Store what these brokers told; a broker of which nothing is left has no file."""
    for name in changed:
        path = keys / TOLD / f"{name}{ENDING}"
        teller = told.get(name)
        if teller is None:
            path.unlink(missing_ok=True)
        else:
            write_secret(path, msgspec.json.encode(teller).decode())
