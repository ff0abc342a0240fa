"""Which certificates no longer count.

Lives here: the folder with a file per name, and what is known of it. Never here: a connection. Invariants: asking costs
no I/O; a file that cannot be read revokes its name altogether; a certificate that was signed after its name was revoked
is not touched by that.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from scale0.kernel.edge.secret_files import write_secret
from scale0.monitoring.pki.certificates import issued_us_of
from scale0.storage.data_dir import sync_directory

EVER_US: Final = 2**63 - 1
SETTLED_SECONDS: Final = 2.0
"""A folder that changed less than this ago is read again: its time stamp may stand for two changes."""
MAX_FILE_BYTES: Final = 1_048_576
_SUFFIX: Final = ".json"
_HEX: Final = re.compile(r"[0-9A-Fa-f]{1,40}", re.ASCII)


class Revoked(msgspec.Struct, frozen=True):
    """What is revoked of one name."""

    before_us: int = 0
    """All that was signed until then. Wall clock."""
    serials: tuple[str, ...] = ()
    """And these, hexadecimal, upper case, without leading zeros."""


def plain_serial(text: str) -> str:
    """A serial as it is kept. ValueError: it is none."""
    if _HEX.fullmatch(text) is None:
        raise ValueError(f"a serial is 1 to 40 hexadecimal digits, not {text[:60]!r}")
    return f"{int(text, 16):X}"


class Revocations:
    """What the folder says, as of the last `refresh`."""

    __slots__ = ("_folder", "_known", "_revoked", "_stamp")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp = -1
        self._known: dict[str, tuple[int, int, int]] = {}
        self._revoked: dict[str, Revoked] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Look at the folder: True if anything changed. Cheap while nothing does; on any thread, one at a time."""
        try:
            stamp = self._folder.stat().st_mtime_ns
            if stamp == self._stamp:
                return False
            entries = _entries(self._folder)
        except FileNotFoundError:
            stamp, entries = 0, []
        except OSError:
            return False  # what was revoked stays so
        known: dict[str, tuple[int, int, int]] = {}
        revoked: dict[str, Revoked] = {}
        for entry in entries:
            name = entry.name.removesuffix(_SUFFIX)
            try:
                found = entry.stat()
                known[name] = (found.st_mtime_ns, found.st_ino, found.st_size)
            except OSError:
                continue
            same = self._known.get(name) == known[name] and name in self._revoked
            revoked[name] = self._revoked[name] if same else _read(Path(entry.path))
        changed = revoked != self._revoked
        self._known, self._revoked = known, revoked  # at once: `covers` may be asked on another thread
        self._stamp = stamp if time.time_ns() - stamp > SETTLED_SECONDS * 1e9 else -1
        return changed

    def covers(self, name: str, serial: str, issued: float) -> bool:
        """True if this certificate no longer counts. `issued` (wall) counts for one that is not of our signing."""
        found = self._revoked.get(name)
        if found is None:
            return False
        try:
            serial = plain_serial(serial)
        except ValueError:
            return True
        if serial in found.serials:
            return True
        issued_us = issued_us_of(int(serial, 16))
        return (int(issued * 1e6) if issued_us is None else issued_us) <= found.before_us

    def touches(self, name: str) -> bool:
        """True if anything of this name was ever revoked."""
        return name in self._revoked

    def before_us(self, name: str) -> int:
        """Until when certificates of this name are revoked; 0: none are."""
        found = self._revoked.get(name)
        return 0 if found is None else found.before_us

    def add(self, name: str, now: float, serial: str = "") -> None:
        """Revoke one certificate of a name, or all that were signed until now. It is on disk when this returns."""
        self.refresh()
        old = self._revoked.get(name, Revoked())
        if serial:
            kept = (*old.serials, plain_serial(serial))
            new = msgspec.structs.replace(old, serials=tuple(sorted(set(kept))))
        else:
            new = Revoked(max(old.before_us, int(now * 1e6)), old.serials)
        write_secret(self._folder / f"{name}{_SUFFIX}", msgspec.json.encode(new).decode())
        sync_directory(self._folder)
        self._stamp = -1
        self.refresh()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [each for each in entries if each.name.endswith(_SUFFIX)]


def _read(path: Path) -> Revoked:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=Revoked)
    except (OSError, msgspec.DecodeError):
        return Revoked(EVER_US)
