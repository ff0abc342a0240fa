"""The folder `keys/told` of a broker: replicated keys of other brokers, kept over a restart.

    keys/told/BROKER.json           the rows of one broker, and which of its keys are gone

Only the broker writes here; commands read. Invariants: a file is complete or absent; a broker does not start with a
file that it cannot read, because it would refuse the keys in it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from scale0.broker.cluster.key_replication import Snapshot
from scale0.broker.cluster.replicated_keys import KeySource
from scale0.kernel.edge.secret_files import write_secret
from scale0.kernel.names import is_identity

REPLICATED: Final = "told"
ENDING: Final = ".json"


def read_replicated_keys(keys: Path) -> tuple[dict[str, KeySource], list[str]]:
    """The rows by broker, and the files that cannot be read, each with the reason and the next step."""
    out, faults = {}, []
    for path in sorted((keys / REPLICATED).glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        if not is_identity(name):
            continue
        try:
            source = msgspec.json.decode(path.read_bytes(), type=KeySource)
            if not all(row.is_valid for row in source.rows.values()):
                raise ValueError("a row is not valid")
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            faults.append(
                f"{path}: cannot read the keys that {name} replicated: {error}. Restore the file, or delete it:"
                f" then these keys are refused until {name} is reachable"
            )
            continue
        out[name] = source
    return out, faults


def write_replicated_keys(keys: Path, replicated: Snapshot, changed: Collection[str]) -> None:
    """Store the rows of these brokers; the file of a broker without rows is removed."""
    for name in changed:
        path = keys / REPLICATED / f"{name}{ENDING}"
        source = replicated.get(name)
        if source is None:
            path.unlink(missing_ok=True)
        else:
            write_secret(path, msgspec.json.encode(source).decode())
