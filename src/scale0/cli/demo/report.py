"""The report of `scale0 demo`: Spark computes it from the history, by the commands that a user would type.

Only the demo's own segments are read. Every process belongs to the demo's network, which ends it. Only the HTML report
stays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.cli.common.child_process import ChildFailed
from scale0.cli.demo.scenario import segment_folders

if TYPE_CHECKING:
    from scale0.cli.demo.local_network import LocalNetwork

PACKAGES: Final = ("pyspark", "pyarrow", "duckdb")
RUN_SECONDS: Final = 600.0
"""How long one command may take on a busy machine."""
MEMORY: Final = "1g"
FEW_ROWS: Final = ("--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.sql.adaptive.enabled=false")
"""For a minute of history planning costs more than the rows."""
PERIOD: Final = ("--last", "2h")
"""A demo may begin in one hour and end in the next."""
DIED: Final = ("lost", "replaced")
"""Why the session of a killed client ends: it was missed, or the client was back before that."""


class Computed(NamedTuple):
    finished: int
    """Tasks."""
    retried: int
    answered: int
    """Requests."""
    died: frozenset[str]
    """Brokers that were down, and workers whose session ended without a goodbye while their broker was up."""
    incidents: dict[str, float]
    """By check: how long it was down, in seconds."""


def missing() -> str:
    """What the report needs and is not installed, with the command to install it; blank: nothing."""
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        return "it needs Spark: pip install 'scale0[pipeline]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return "it needs Java 17 or newer: set JAVA_HOME, or on Debian: sudo apt-get install openjdk-17-jre-headless"
    return ""


def compute(network: LocalNetwork, progress: Callable[[], None]) -> str:
    """Run `scale0 pipeline run` over all segments; on a terminal it shows its own progress. Returns its output."""
    segments = [word for folder in segment_folders(network) for word in ("--segments", str(folder))]
    words = ("pipeline", "run", *segments, *_warehouse(network), "--memory", MEMORY, *FEW_ROWS)
    if sys.stderr.isatty():
        _run(network, words, None)
        return ""
    return _run(network, words, subprocess.PIPE, progress)


def write_page(network: LocalNetwork, page: Path | None) -> Path:
    written = network.data_dir / "report.html"
    _run(network, ("report", "all", *_warehouse(network), *PERIOD, "--format", "html", "--out", str(written)))
    if page is None:
        descriptor, name = tempfile.mkstemp(prefix="scale0-demo-", suffix=".html")
        os.close(descriptor)
        page = Path(name)
    shutil.copyfile(written, page)  # at once: a demo that is interrupted leaves no empty page
    return page


def computed(network: LocalNetwork) -> Computed:
    lines = _run(network, ("report", "all", *_warehouse(network), *PERIOD, "--format", "json")).splitlines()
    reports = {report["report"]: report["tables"][0]["rows"] for report in map(json.loads, lines)}
    sessions = _run(network, ("pipeline", "show", "sessions", *_warehouse(network), "--all", "--format", "json"))
    return count(reports, [json.loads(line) for line in sessions.splitlines()])


def count(reports: dict[str, Sequence[dict[str, Any]]], sessions: Sequence[dict[str, Any]]) -> Computed:
    tasks, requests, subjects = reports["tasks"], reports["requests"], reports["availability"]
    # A worker is also down for a moment when its broker returns: only its sessions show that it died itself.
    workers = {row["identity"] for row in sessions if row["role"] == "backend" and row["reason"] in DIED}
    down = [row for row in subjects if row["incidents"]]
    return Computed(
        finished=sum(row["finished"] for row in tasks),
        retried=sum(row["retried"] for row in tasks),
        answered=sum(row["answered"] for row in requests if row["service"] == "demo.work"),
        died=frozenset(workers | {row["subject"] for row in down if row["subject_kind"] == "broker"}),
        incidents={row["subject"]: row["down_seconds"] for row in down if row["subject_kind"] == "check"},
    )


def _warehouse(network: LocalNetwork) -> tuple[str, str]:
    return ("--warehouse", str(network.data_dir / "warehouse"))


def _run(
    network: LocalNetwork,
    words: Sequence[str],
    to: int | None = subprocess.PIPE,
    progress: Callable[[], None] | None = None,
) -> str:
    """The output of a command; ChildFailed with the end of its errors if it fails."""
    code, text, trouble = network.run(words, RUN_SECONDS, to, progress=progress)
    if code:
        raise ChildFailed(f"scale0 {words[0]} {words[1]} exited with {code} {trouble.strip()[-500:]}".rstrip())
    return text
