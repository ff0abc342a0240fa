"""The revocation list: a folder with one file for each name.

Invariants: a query needs no I/O; an unreadable file revokes all certificates of its name; a certificate signed after
its name was revoked is valid.
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

FOREVER_US: Final = 2**63 - 1
SETTLED_SECONDS: Final = 2.0
"""A folder that changed more recently is read again: two changes may have one time stamp."""
MAX_FILE_BYTES: Final = 1_048_576
_SUFFIX: Final = ".json"
_HEX: Final = re.compile(r"[0-9A-Fa-f]{1,40}", re.ASCII)


class Revoked(msgspec.Struct, frozen=True):
    before_us: int = 0
    """All certificates signed until then. Wall clock."""
    serials: tuple[str, ...] = ()
    """And these, hexadecimal, upper case, without leading zeros."""


def normalized_serial(text: str) -> str:
    """A serial number in the stored notation. ValueError: it is none."""
    if _HEX.fullmatch(text) is None:
        raise ValueError(f"a serial number has 1 to 40 hexadecimal digits, not {text[:60]!r}")
    return f"{int(text, 16):X}"


class RevocationList:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp = -1
        self._known: dict[str, tuple[int, int, int]] = {}
        self._revoked: dict[str, Revoked] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read the folder: True if anything changed. Cheap if nothing did; in any thread, one at a time."""
        try:
            stamp = self._folder.stat().st_mtime_ns
            if stamp == self._stamp:
                return False
            entries = _entries(self._folder)
        except FileNotFoundError:
            stamp, entries = 0, []
        except OSError:
            return False  # revocations stay in force
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
        self._known, self._revoked = known, revoked  # in one step: `revokes` may be called in another thread
        self._stamp = stamp if time.time_ns() - stamp > SETTLED_SECONDS * 1e9 else -1
        return changed

    def revokes(self, name: str, serial: str, issued: float) -> bool:
        """True if this certificate is revoked. `issued` (wall) is used for one that another CA signed."""
        found = self._revoked.get(name)
        if found is None:
            return False
        try:
            serial = normalized_serial(serial)
        except ValueError:
            return True
        if serial in found.serials:
            return True
        issued_us = issued_us_of(int(serial, 16))
        return (int(issued * 1e6) if issued_us is None else issued_us) <= found.before_us

    def has_entry(self, name: str) -> bool:
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
            kept = (*old.serials, normalized_serial(serial))
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
        return Revoked(FOREVER_US)
