"""The simulation part: batches of new seeds of networks and of agents, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from evidence.model import Campaign, Seeds, Violation
from evidence.processes import REPOSITORY

KINDS: Final = ("networks", "agents")
BATCH: Final = 3
VIRTUAL_MINUTES: Final = 4
MAX_SECONDS: Final = 300.0
"""Of one batch."""


def simulate(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulation of the package in `source`; `simulator` is taken from there, too, if it is there."""
    path = os.pathsep.join((str(source), str(REPOSITORY)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "simulator.main", *arguments]
    return subprocess.run(
        command, env=environment, cwd=source, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
    )


def broken_lines(printed: str) -> list[str]:
    """`seed 3 broke task-once: …`, each."""
    return [line.strip() for line in printed.splitlines() if line.startswith("seed ") and " broke " in line]


def run_simulation(source: Path, seconds: float, campaign: Campaign) -> None:
    """Both kinds in turn until the time is up; at least one batch of each."""
    first = campaign.seed
    kinds = {kind: Seeds(kind, first=first, last=first - 1) for kind in KINDS}
    campaign.seeds += kinds.values()
    end = time.monotonic() + seconds
    while True:
        for kind, seeds in kinds.items():
            begin = seeds.last + 1
            words = ("--kind", kind, "--first", str(begin), "--seeds", str(BATCH), "--minutes", str(VIRTUAL_MINUTES))
            try:
                done = simulate(source, *words)
            except subprocess.TimeoutExpired:
                campaign.extra.append(Violation("simulation", f"{' '.join(words)} took more than {MAX_SECONDS:.0f} s"))
                return
            seeds.tried += BATCH
            seeds.last = begin + BATCH - 1
            seeds.broken += broken_lines(done.stdout)
            if done.returncode not in (0, 1) or (done.returncode == 1 and not broken_lines(done.stdout)):
                what = f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-300:]}"
                campaign.extra.append(Violation("simulation", what))
                return
        if time.monotonic() >= end:
            return
