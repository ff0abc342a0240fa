"""`make bench`: Scale0 and the peers that this machine has, in one interleaved run; the page is made of what it finds.

python -m benchmarks.whole [requests] [tasks] [postgres] [--rounds N] [--quick] [--seconds N] [--json FILE] [--write]

In rounds: each contender after the other, each round from another one on, so that whatever else the machine does falls
on all of them. Medians of all rounds count. A peer that is not installed is said and left out. A whole run that is not
quick, on a machine that was not busy, writes benchmarks/results/latest.json, and makes docs/performance.md and its
plots of it; any other run does so only with --write. It takes some nine minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders import CONTENDERS, FEWEST, PARTS, Contender
from benchmarks.machine import machine, versions
from benchmarks.task_peers import servers
from benchmarks.tasks import QUICK_SHARE, note

ROUNDS = 5
RUN_SECONDS = 600
"""No further round is begun that would end later."""


def rows_of(contenders: Sequence[Contender], gaps: dict[Contender, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """An empty row for each figure, also for those that are left out."""
    return {
        (row.table, row.name): {
            "table": row.table,
            "name": row.name,
            "promise": one.promise,
            "ours": one.ours,
            "values": [],
            "left_out": gaps.get(one, ""),
        }
        for one in contenders
        for row in one.rows
    }


def measure(contender: Contender, rows: dict[tuple[str, str], dict[str, Any]], share: int) -> list[str]:
    """All figures of one contender, each once; what went wrong."""
    failures = []
    try:
        with contender.network() as place:
            for row in contender.rows:
                found = row.take(place, max(FEWEST, row.count // share))
                target = rows[row.table, row.name]
                target["values"].append(round(found.get("rate") or found["p50"], 1))
                if "p99" in found:
                    target.setdefault("p99", []).append(round(found["p99"], 1))
                note(f"{row.table:22} {row.name:38} {target['values'][-1]:>12,.0f}")
    except Exception as error:  # whatever becomes of one, the others go on
        failures.append(f"{contender.name} ({contender.part}): {error}")
        note(f"failed: {failures[-1]}")
    return failures


def left_out(contenders: Sequence[Contender]) -> dict[Contender, str]:
    """Those that this machine has not got, and why."""
    gaps = {one: servers.missing(*one.needs) for one in contenders if one.needs is not None}
    return {one: gap for one, gap in gaps.items() if gap is not None}


def run(parts: Sequence[str], rounds: int, seconds: float, quick: bool) -> dict[str, Any]:
    """All rounds: everything that the page is made of."""
    chosen = [one for one in CONTENDERS if one.part in parts]
    gaps = left_out(chosen)
    for one, gap in gaps.items():
        print(f"left out: {one.name}: {gap}", flush=True)
    present = [one for one in chosen if one not in gaps]
    found: dict[str, Any] = {
        "format": report.FORMAT,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": quick,
        "parts": list(parts),
        "machine": machine(tempfile.gettempdir()),
        "versions": versions("postgres" in parts),
    }
    if report.busy(found):
        load = found["machine"]["load"]
        print(f"the machine is busy (load {load}): its figures make no page without --write", flush=True)
    rows = rows_of(chosen, gaps)
    failures: list[str] = []
    start, done = time.monotonic(), 0
    while done < rounds and (not done or (time.monotonic() - start) / done * (done + 1) <= seconds):
        turn = done % len(present)
        for number, one in enumerate(present[turn:] + present[:turn]):
            note(f"round {done + 1} of {rounds}, {number + 1} of {len(present)}: {one.name}, {one.part}")
            failures += measure(one, rows, QUICK_SHARE if quick else 1)
        done += 1
        note(f"round {done} ended after {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f}")
    spent = {"rounds": done, "seconds": round(time.monotonic() - start), "load_after": round(os.getloadavg()[0], 2)}
    return {**found, **spent, "rows": list(rows.values()), "failures": failures}


def read_arguments() -> argparse.Namespace:
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="only these parts")
    reader.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each is measured ({ROUNDS})")
    reader.add_argument("--quick", action="store_true", help="one round with few of each: does everything work?")
    reader.add_argument("--seconds", type=float, default=RUN_SECONDS, help=f"begin no round beyond ({RUN_SECONDS})")
    reader.add_argument("--json", type=Path, metavar="FILE", help="write what was found here, too")
    reader.add_argument("--write", action="store_true", help="make the page of it, whatever it was")
    reader.add_argument("--data", metavar="FOLDER", help="where servers keep their data (the system's place for that)")
    return reader.parse_args()


def main() -> int:
    arguments = read_arguments()
    parts = arguments.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    tempfile.tempdir = arguments.data or tempfile.tempdir
    found = run(parts, 1 if arguments.quick else max(1, arguments.rounds), arguments.seconds, arguments.quick)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print("\n" + report.section(found))
    if arguments.write or (set(parts) == set(PARTS) and not arguments.quick and not report.busy(found)):
        report.LATEST.parent.mkdir(exist_ok=True)
        report.LATEST.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        for path in report.write(found):
            print(f"written: {path}")
    else:
        print("the page stays as it is: only a whole run on a machine that was not busy makes it, or --write")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
