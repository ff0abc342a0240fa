"""`python -m evidence.bugs`: plants each bug in a copy of the package, and runs the part that must find it.

A bug is found if the part is green without it, and with it judges that a promise of the patch is broken; an attack that
could not be judged finds nothing. It prints a table and writes build/evidence/bugs.json. Exit status 1: a bug was not
found.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from evidence.model import Violation
from evidence.planting import SIMULATION, Planted, plant, read_all
from evidence.processes import REPOSITORY
from evidence.simulation import simulate

PART_SECONDS: Final = {"faults": 25.0, "group": 25.0, "monitoring": 15.0, "attacks": 1.0}
"""How long the part runs with a bug in it."""
RUN_SECONDS: Final = 240.0
RED_WITHOUT: Final = "red without the bug"
OUT: Final = REPOSITORY / "build" / "evidence"


class Verdict(NamedTuple):
    bug: Planted
    found: bool
    said: str
    """The line that names the promise, or what was said instead."""
    seconds: float


def try_bug(bug: Planted) -> Verdict:
    """Run what must find it without it, which must be green, and then with it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scale0-planted-") as name:
        folder = Path(name)
        plant(bug, folder)
        found, said = simulated(bug, folder) if bug.part == SIMULATION else campaigned(bug, folder)
    return Verdict(bug, found, said, time.monotonic() - began)


def simulated(bug: Planted, folder: Path) -> tuple[bool, str]:
    """The seed that shows it soonest; all seeds of its run if that one does not."""
    said = ""
    for words in (bug.seed, bug.run):
        printed = simulate(folder, *words).stdout
        lines = [line for line in printed.splitlines() if any(f"broke {promise}: " in line for promise in bug.promises)]
        said = lines[0].strip() if lines else printed.strip()[-300:]
        if lines:
            red = healthy_simulation(words)
            return not red, red or said
    return False, said


@functools.cache
def healthy_simulation(words: tuple[str, ...]) -> str:
    """What the same seeds find in the package itself; empty: nothing."""
    done = simulate(REPOSITORY / "src", *words)
    return "" if done.returncode == 0 else f"{RED_WITHOUT}: {done.stdout.strip()[-300:]}"


def campaigned(bug: Planted, folder: Path) -> tuple[bool, str]:
    """Only the fault or attack that the patch names: it must be judged, and its promise broken."""
    red = healthy_campaign(bug.part, bug.only)
    if red:
        return False, red
    document, printed = campaign(bug.part, bug.only, folder, folder / "out")
    return found_in(document, bug.promises) if document else (False, printed)


def found_in(document: dict[str, Any], promises: Sequence[str]) -> tuple[bool, str]:
    """Whether the campaign judged that one of these promises is broken, and what it said."""
    violations = [Violation(**one) for one in document["violations"]]
    for one in violations:
        if one.judged and one.promise in promises:
            return True, str(one)
    return False, "; ".join(map(str, violations)) or "every promise was kept"


@functools.cache
def healthy_campaign(part: str, only: str) -> str:
    """What the same fault or attack finds in the package itself; empty: nothing."""
    with tempfile.TemporaryDirectory(prefix="scale0-planted-") as name:
        return red_without(*campaign(part, only, REPOSITORY / "src", Path(name) / "out"))


def red_without(document: dict[str, Any] | None, printed: str) -> str:
    """Why a campaign without the bug judges nothing; empty: it is green."""
    if document is None:
        return f"{RED_WITHOUT}: {printed}"
    return "" if document["green"] else f"{RED_WITHOUT}: {found_in(document, ())[1]}"


def campaign(part: str, only: str, source: Path, out: Path) -> tuple[dict[str, Any] | None, str]:
    """The document of one campaign and what it printed; None: it wrote none."""
    command = [sys.executable, "-m", "evidence.main", "--parts", part, "--only", only, "--seed", "1"]
    command += ["--minutes", str(PART_SECONDS[part] / 60), "--source", str(source), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(out.parent)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "the campaign did not end"
    written = out / "evidence.json"
    printed = f"exit status {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
    return (json.loads(written.read_text(encoding="utf-8")) if written.exists() else None), printed


def chosen(names: list[str], parts: list[str]) -> list[Planted]:
    bugs = [bug for bug in read_all() if (not names or bug.name in names) and (not parts or bug.part in parts)]
    missing = set(names) - {bug.name for bug in bugs}
    if missing:
        raise SystemExit(f"no bug is called {', '.join(sorted(missing))}")
    return bugs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence.bugs", description=__doc__)
    parser.add_argument("--parts", default="", help="only bugs of these parts, separated by commas")
    parser.add_argument("names", nargs="*", help="only these bugs (all)")
    given = parser.parse_args(arguments)
    bugs = chosen(given.names, [part for part in given.parts.split(",") if part])
    verdicts = []
    print(f"{'BUG':42} {'PROMISE':26} {'PART':11} {'FOUND':6} SECONDS")
    for bug in bugs:
        verdict = try_bug(bug)
        verdicts.append(verdict)
        found = "yes" if verdict.found else "NO"
        print(
            f"{bug.name:42} {', '.join(bug.promises):26.26} {bug.part:11} {found:6} {verdict.seconds:7.1f}", flush=True
        )
        if not verdict.found:
            print(f"    {verdict.said}", flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [
        {"bug": one.bug.name, "what": one.bug.what, "promises": one.bug.promises, "part": one.bug.part}
        | {"found": one.found, "said": one.said, "seconds": round(one.seconds, 1)}
        for one in verdicts
    ]
    (OUT / "bugs.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = [one.bug.name for one in verdicts if not one.found]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} planted bugs were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
