"""The last chapter of `scale0 demo`: Spark computes what has just happened, and a report says it.

Lives here: the commands that a person would type for it, and what their numbers must say. Never here: how a number is
made. Invariants: only the demo's own segments are read; every process is one of the demo's network, which ends it; the
page is the one thing that stays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.cli import output
from scale0.cli.child import Broken

if TYPE_CHECKING:
    from scale0.cli.demo_network import DemoNetwork

PARTS: Final = ("pyspark", "pyarrow", "duckdb")
RUN_SECONDS: Final = 600.0
"""How long a command may take on a machine that has other things to do."""
MEMORY: Final = "1g"
FEW_ROWS: Final = ("--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.sql.adaptive.enabled=false")
"""For a minute of history: planning costs more than the rows."""
SPAN: Final = ("--last", "2h")
"""A demo may begin in one hour and end in the next."""
SHOWN: Final = {
    "availability": ("--subject", "[dw]*", "--limit", "6"),
    "tasks": ("--limit", "3"),
    "requests": ("--service", "demo.*", "--limit", "3"),
}
"""So much of each report that all of them fit a screen: the demo's own names begin so, Helen's services do not."""
BACKEND: Final = "backend"
BROKER: Final = "broker"
DIED: Final = ("lost", "replaced")
"""How a session ends whose client was killed: it is missed, or it is back before that."""


class Counted(NamedTuple):
    """What the tables say of the demo."""

    finished: int
    """Tasks."""
    retried: int
    answered: int
    """Requests."""
    died: frozenset[str]
    """Brokers that were down, and workers of whom a session ended without their leave or their broker's end."""


def missing() -> str:
    """What Spark would need and is not there, and how to get it; blank: all of it is there."""
    if any(importlib.util.find_spec(name) is None for name in PARTS):
        return "it needs Spark: pip install 'scale0[pipeline]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return "it needs Java 17 or newer: set JAVA_HOME, or on Debian: sudo apt-get install openjdk-17-jre-headless"
    return ""


def compute(network: DemoNetwork) -> None:
    """`scale0 pipeline run`, its progress where there is a terminal. Broken if it fails."""
    words = ("pipeline", "run", "--data-dir", str(network.data_dir), "--memory", MEMORY, *FEW_ROWS)
    _run(network, words, None)


def show(network: DemoNetwork) -> None:
    """The reports, as short as they can be."""
    for name, words in SHOWN.items():
        output.say()
        said = _asked(network, name, *words)
        # The notes below a table are the same for all three: the page has them.
        output.say(said.partition("\n\nThe tables go up to")[0].rstrip())


def write_page(network: DemoNetwork, page: Path) -> None:
    """All reports, as one page."""
    _asked(network, "all", "--format", "html", "--out", str(page))


def counted(network: DemoNetwork) -> Counted:
    """What the reports and the sessions say, for a program."""
    lines = _asked(network, "all", "--format", "json").splitlines()
    reports = {report["report"]: report["tables"][0]["rows"] for report in map(json.loads, lines)}
    words = ("pipeline", "show", "sessions", "--data-dir", str(network.data_dir), "--format", "json")
    shown = _run(network, words, subprocess.PIPE)
    return count(reports, [json.loads(line) for line in shown.splitlines()])


def count(reports: dict[str, Sequence[dict[str, Any]]], sessions: Sequence[dict[str, Any]]) -> Counted:
    """The few things of it that a demo knows by itself."""
    tasks, requests = reports["tasks"], reports["requests"]
    # When its broker comes back, a worker is down for a moment, too: only its sessions tell that it died itself.
    workers = {row["identity"] for row in sessions if row["role"] == BACKEND and row["reason"] in DIED}
    brokers = {row["subject"] for row in reports["availability"] if row["subject_kind"] == BROKER and row["incidents"]}
    return Counted(
        finished=sum(row["finished"] for row in tasks),
        retried=sum(row["retried"] for row in tasks),
        answered=sum(row["answered"] for row in requests if row["service"].startswith("demo.")),
        died=frozenset(workers | brokers),
    )


def _asked(network: DemoNetwork, name: str, *more: str) -> str:
    """What `scale0 report …` prints."""
    return _run(network, ("report", name, "--data-dir", str(network.data_dir), *SPAN, *more), subprocess.PIPE)


def _run(network: DemoNetwork, words: Sequence[str], to: int | None) -> str:
    """A command of ours, to its end; Broken with its last words if it fails."""
    code, said, troubled = network.run(words, RUN_SECONDS, to)
    if code:
        raise Broken(f"scale0 {words[0]} {words[1]} ended with {code} {troubled.strip()[-500:]}".rstrip())
    return said
