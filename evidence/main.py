"""`python -m evidence.main --minutes 30`: faults, attacks and simulated seeds, and a page about them.

It writes evidence.html and evidence.json to build/evidence. Exit status 1: something was lost or doubled, an attack
succeeded, a process ended, a recovery was late, or a seed broke.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import zmq

from evidence.attacks import run_attacks
from evidence.faults import FaultPart
from evidence.faults_group import GroupPart, run_group
from evidence.faults_monitoring import MonitoringPart
from evidence.model import Campaign, as_json, judge
from evidence.page import html_page
from evidence.processes import REPOSITORY
from evidence.simulation import run_simulation
from evidence.site import ATTACKS

SHARES: Final = {"faults": 0.3, "group": 0.15, "monitoring": 0.1, "attacks": 0.25, "simulation": 0.2}
"""Of the time, by part."""
KINDS: Final[dict[str, Mapping[str, object]]] = {
    "faults": FaultPart.FAULTS,
    "group": GroupPart.FAULTS,
    "monitoring": MonitoringPart.FAULTS,
    "attacks": ATTACKS,
}
"""What `--only` chooses from, by part; a part of which it chooses nothing does not run."""


def versions() -> dict[str, str]:
    """What was tested, and on what."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return {
        "revision": described.stdout.strip() or "unknown",
        "Python": platform.python_version(),
        "pyzmq": zmq.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def run_part(part: str, source: Path, folder: Path, seconds: float, campaign: Campaign, only: list[str]) -> None:
    print(f"evidence: {part}, {seconds:.0f} s", flush=True)
    match part:
        case "faults":
            FaultPart(source, folder / part, campaign).run(seconds, only)
        case "group":
            run_group(source, folder / part, seconds, campaign, only)
        case "monitoring":
            MonitoringPart(source, folder / part, campaign).run(seconds, only)
        case "attacks":
            run_attacks(source, folder / part, seconds, campaign, only)
        case _:
            run_simulation(source, seconds, campaign)


def write(campaign: Campaign, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = as_json(campaign)
    (folder / "evidence.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "evidence.html").write_text(html_page(document), encoding="utf-8")
    numbers = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in document["totals"].items())
    print(f"evidence: {numbers}")
    print(f"evidence: wrote {folder / 'evidence.html'} and evidence.json")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evidence.main", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, all parts together (30)")
    parser.add_argument("--parts", default=",".join(SHARES), help="which, separated by commas (all)")
    parser.add_argument("--only", default="", help="only these faults or attacks, by name, separated by commas")
    parser.add_argument("--seed", type=int, help="of the faults, the attacks and the first simulated network (by date)")
    parser.add_argument("--source", type=Path, default=REPOSITORY / "src", help="the folder with the package (src)")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "evidence", help="where to write")
    given = parser.parse_args(arguments)
    given.parts = [part for part in given.parts.split(",") if part]
    given.only = [name for name in given.only.split(",") if name]
    for part in given.parts:
        if part not in SHARES:
            parser.error(f"no part is called {part}: there are {', '.join(SHARES)}")
    known = [name for part in given.parts for name in KINDS.get(part, ())]
    for name in given.only:
        if name not in known:
            parser.error(f"no fault or attack of these parts is called {name}: there are {', '.join(known)}")
    return given


def main(arguments: list[str]) -> int:
    given = parsed(arguments)
    seed = given.seed if given.seed is not None else int(time.time() // 86_400) * 100_000
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    campaign = Campaign(seed, now, versions(), given.minutes)
    folder = Path(tempfile.mkdtemp(prefix="scale0-evidence-"))
    parts = [part for part in given.parts if not given.only or KINDS.get(part, {}).keys() & given.only]
    whole = sum(SHARES[part] for part in parts)
    began = time.monotonic()
    for part in parts:
        seconds = given.minutes * 60 * SHARES[part] / whole
        run_part(part, given.source.resolve(), folder, seconds, campaign, given.only)
    campaign.seconds = time.monotonic() - began
    write(campaign, given.out)
    violations = judge(campaign)
    for violation in violations:
        print(violation)
    if violations:
        print(f"evidence: BROKEN; data and logs are in {folder}; --seed {seed} repeats the same faults")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("evidence: every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
