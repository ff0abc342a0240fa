"""Histories to measure with: made once and kept; and one that is split in two, for incremental runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scale0.history.segments import arrow
from scale0.history.segments.names import name_of, parse
from simulator.history import generate

SEED = 1
TRUTHS = "truths.json"


class History(NamedTuple):
    folder: Path
    events: int


def history(cache: Path, events: int, days: int) -> History:
    """A network's history of about so many events; the same folder whenever it is asked for."""
    folder = cache / f"history-{events}-{days}-{SEED}"
    if not (folder / TRUTHS).exists():
        half_made = folder.with_suffix(".part")
        shutil.rmtree(half_made, ignore_errors=True)
        print(f"  making a history of {events:,} events", file=sys.stderr)
        generate(events=events, days=days, seed=SEED, out=half_made)
        half_made.rename(folder)
    return known(folder)


def known(folder: Path) -> History:
    """A history that somebody made."""
    return History(folder, int(json.loads((folder / TRUTHS).read_text())["events"]))


def cut(whole: Path, out: Path, share: float) -> tuple[Path, list[tuple[Path, Path]], int]:
    """A history without the newest `share` of its events: its folder, what is to be moved there, and how many events.

    Segments are cut where time is cut, as if they had been rolled there; what comes later waits beside the folder.
    """
    shutil.rmtree(out, ignore_errors=True)
    files = sorted(path for path in whole.glob("written=*/seg-*.parquet"))
    cut_us = _newest(files, share)
    later: list[tuple[Path, Path]] = []
    events = 0
    for path in files:
        first, rest = (out / side / path.parent.name for side in ("segments", "later"))
        first.mkdir(parents=True, exist_ok=True)
        times = pq.read_table(path, columns=["time"])["time"].cast(pa.int64()).to_numpy()
        count = int((times <= cut_us).sum())
        if count == len(times):
            os.link(path, first / path.name)
            continue
        rest.mkdir(parents=True, exist_ok=True)
        rows = arrow.open_segment(path).read()
        for piece, folder in ((rows.slice(0, count), first), (rows.slice(count), rest)):
            if piece.num_rows:
                name = _name(path.name, piece)
                arrow.write(piece, folder / name)
                if folder == rest:
                    later.append((rest / name, first / name))
                    events += piece.num_rows
    return out / "segments", later, events


def _newest(files: list[Path], share: float) -> int:
    times = pa.concat_arrays(
        [chunk for path in files for chunk in pq.read_table(path, columns=["time"])["time"].cast(pa.int64()).chunks]
    ).to_numpy()
    return int(sorted(times)[int(len(times) * (1 - share))])


def _name(name: str, rows: pa.Table) -> str:
    segment = parse(name)
    assert segment is not None
    return name_of(segment._replace(first_seq=rows["seq"][0].as_py(), last_seq=rows["seq"][-1].as_py()))
