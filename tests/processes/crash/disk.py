"""A disk that loses power: what strace saw a process write, and every state that a crash may leave of it.

The fault model: what was written before an fsync of its file returned is there; of everything else each sector of 512
bytes may be there or not, in any order; a new file may be missing, and a removed one be there, until an fsync of the
folder returned.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
CALLS = "openat,write,pwrite64,fdatasync,fsync,ftruncate,unlink,close"
WATCHED = ("scale0.db", "scale0.db-journal", "scale0.db-wal")
FOLDER = "data"

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_PATH = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Op(NamedTuple):
    """One operation: a file written, cut, synced, made or dropped, a folder synced, a commit acknowledged."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""


def strace(log: Path) -> list[str]:
    """The command that watches another; all strings in hexadecimal and whole."""
    return ["strace", "-f", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-o", str(log)]


def read_trace(log: Path) -> list[Op]:
    """What happened to the database and its log, in order. One thread: no call is interrupted by another."""
    names: dict[int, str] = {}
    ops: list[Op] = []
    for line in log.read_text().splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        call, words, status = found[1], found[2], int(found[3])
        if status >= 0:
            ops += _op(call, words, status, names)
    return ops


def _op(call: str, words: str, status: int, names: dict[int, str]) -> Iterator[Op]:
    text = [bytes.fromhex(each.replace("\\x", "")) for each in _PATH.findall(words)]
    if call in ("openat", "unlink"):
        name = os.path.basename(text[0].decode())
        if call == "unlink":
            yield Op("drop", name)
            return
        names[status] = name
        if name in WATCHED and "O_CREAT" in words:
            yield Op("make", name)
        return
    number = int(words.split(",", maxsplit=1)[0])
    name = names.get(number, "")
    if call == "close":
        names.pop(number, None)
    elif call == "write" and number == 1:
        yield Op("say", "", int(text[0]))
    elif name == FOLDER and call in ("fdatasync", "fsync"):
        yield Op("folder", "")
    elif name in WATCHED and call in ("fdatasync", "fsync"):
        yield Op("sync", name)
    elif name in WATCHED and call == "ftruncate":
        yield Op("cut", name, int(words.split(",")[1]))
    elif name in WATCHED and call == "pwrite64":
        assert len(text[0]) == status, "a short write"
        yield Op("write", name, int(words.rpartition(",")[2]), text[0])
    elif name in WATCHED:
        raise AssertionError(f"not understood: {call}({words[:100]})")


class State:
    """The files as a crash leaves them."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        """What is there for certain."""
        self.loose: dict[str, list[Op]] = {}
        """What may be there, in the order in which it was done."""
        self.unnamed: set[str] = set()
        """New files: their names may not be there."""
        self.ghosts: dict[str, bytes] = {}
        """Files that were taken away: they may still be there."""
        self.acknowledged = 0
        """The last commit that returned."""

    def do(self, op: Op) -> None:
        if op.kind == "say":
            self.acknowledged = op.offset
        elif op.kind == "make":
            if op.file not in self.files:
                self.files[op.file] = bytearray()
                self.unnamed.add(op.file)
        elif op.kind == "drop":
            self.ghosts[op.file] = bytes(self.files.pop(op.file, b""))
            self.loose.pop(op.file, None)
        elif op.kind == "folder":
            self.unnamed.clear()
            self.ghosts.clear()
        elif op.kind == "sync":
            for each in self.loose.pop(op.file, ()):
                _apply(self.files[op.file], each)
        else:
            self.loose.setdefault(op.file, []).append(op)

    def plain(self, share: float) -> dict[str, bytes]:
        """The files after a loss of power that kept all of what was not synced (1.0), or nothing (0.0)."""
        left = dict(self.ghosts) if share == 0.0 else {}
        for name, sure in self.files.items():
            if name in self.unnamed and share == 0.0:
                continue
            content = bytearray(sure)
            for op in self.loose.get(name, ()) if share else ():
                _apply(content, op)
            left[name] = bytes(content)
        return left

    def crashed(self, chance: random.Random) -> dict[str, bytes]:
        """The files after a loss of power, by chance."""
        left = {name: content for name, content in self.ghosts.items() if chance.random() < 0.5}
        for name, sure in self.files.items():
            if name in self.unnamed and chance.random() < 0.5:
                continue
            content = bytearray(sure)
            share = chance.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            for op in self.loose.get(name, ()):
                for part in _sectors(op):
                    if chance.random() < share:
                        _apply(content, part)
            left[name] = bytes(content)
        return left


def _sectors(op: Op) -> Iterator[Op]:
    """A write as the disk does it."""
    if op.kind == "cut":
        yield op
        return
    start = op.offset
    while start < op.offset + len(op.data):
        end = min((start // SECTOR + 1) * SECTOR, op.offset + len(op.data))
        yield Op("write", op.file, start, op.data[start - op.offset : end - op.offset])
        start = end


def _apply(content: bytearray, op: Op) -> None:
    if op.kind == "cut":
        del content[op.offset :]
        content.extend(bytes(op.offset - len(content)))
        return
    content.extend(bytes(max(0, op.offset - len(content))))
    content[op.offset : op.offset + len(op.data)] = op.data


def crash_states(ops: list[Op], count: int, chance: random.Random) -> Iterator[tuple[int, dict[str, bytes]]]:
    """States that a crash may leave, with the last commit that had returned.

    After every single operation: all of what was not synced is there, and nothing of it; and `count` states more,
    spread over all moments, in which each sector is there or not by chance. A state that was there before, with the
    same commit said, is left out: a sync changes what is certain, not what is there.
    """
    moments = Counter(chance.choices(range(len(ops)), k=count))
    state = State()
    seen: set[tuple[int, bytes]] = set()
    for moment, op in enumerate(ops):
        state.do(op)
        for files in [state.plain(1.0), state.plain(0.0), *(state.crashed(chance) for _ in range(moments[moment]))]:
            mark = (state.acknowledged, _digest(files))
            if mark not in seen:
                seen.add(mark)
                yield state.acknowledged, files


def _digest(files: dict[str, bytes]) -> bytes:
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        whole.update(b"%b %d " % (name.encode(), len(content)))
        whole.update(content)
    return whole.digest()
