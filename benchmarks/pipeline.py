"""`make bench-pipeline`: the pipeline on this machine, beside DuckDB's SQL for the same tables.

python -m benchmarks.pipeline [tables] [task_stats] [flat] [incremental] [memory] [cluster] [report]

Without words: all of them. Everything is measured in one run: one history, a Spark session whose start stands apart,
DuckDB in a process of its own with as many threads, in turns. The figures are printed, and written as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory import Peak
from benchmarks.networks import ROOT
from benchmarks.pipeline_duckdb.compare import compare, compare_folder
from benchmarks.pipeline_duckdb.compute import TABLES
from benchmarks.pipeline_history import History, cut, history, known
from scale0.cli.pipeline.pipeline import MEMORY

MILLION = 1_000_000
NEWEST_SHARE = 0.01
REPORT_ROUNDS = 5
GB = 1e9
MB = 1e6


class Driver:
    """The process with the Spark session, spoken to by lines."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.pid = child.pid
        self.session_seconds = self._answer()["session_seconds"]

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the driver is gone; what it said stands above")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def driver(master: str, events: int | None = None, **settings: str) -> Iterator[Driver]:
    """One session, for so many events, as `scale0 pipeline run` would start it; whoever leaves ends it."""
    words = [sys.executable, "-m", "benchmarks.pipeline_driver", master]
    settings = {"spark.driver.memory": MEMORY, **settings}
    with subprocess.Popen(
        [*words, json.dumps(settings), json.dumps(events)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        try:
            yield Driver(child)
        except BaseException:
            child.kill()
            raise


class Bench:
    """What all parts share: the options, the history, and a folder for what they make."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.cores: int = options.cores
        self.master = f"local[{self.cores}]"
        self.work = work
        self.cache: Path = options.cache
        self._kept: Path | None = None

    def history(self) -> History:
        if self.options.history is not None:
            return known(self.options.history)
        return history(self.cache, self.options.events, self.options.days)

    def warehouse(self) -> Path:
        """With the tables of the history: those of an earlier part, or made now."""
        if self._kept is None:
            with driver(self.master) as ours:
                ours.do("run", segments=str(self.history().folder), warehouse=str(self.work / "kept"), fresh=True)
            self._kept = self.work / "kept"
        return self._kept

    def keep(self, warehouse: Path) -> None:
        self._kept = warehouse


def yardstick(bench: Bench, segments: Path, out: Path, *more: str) -> tuple[dict[str, float], int]:
    """DuckDB's seconds by step, and the most memory that it held."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.pipeline_duckdb.compute", str(segments), str(out), *more]
    with subprocess.Popen(
        [*command, "--threads", str(bench.cores)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        with Peak(child.pid) as peak:
            said, _ = child.communicate()
        if child.returncode:
            raise RuntimeError(f"DuckDB ended with {child.returncode}")
    return json.loads(said), peak.bytes


def tables(bench: Bench) -> dict[str, Any]:
    """All tables, from segments to Parquet, in turns with DuckDB; the answers are compared."""
    data = bench.history()
    warehouse, out = bench.work / "tables", bench.work / "duckdb"
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, float]] = []
    peaks: dict[str, int] = {"ours": 0, "duckdb": 0}
    with driver(bench.master) as session:
        for number in range(bench.options.rounds):
            with Peak(session.pid) as peak:
                ours.append(session.do("run", segments=str(data.folder), warehouse=str(warehouse), fresh=True))
            peaks["ours"] = max(peaks["ours"], peak.bytes)
            steps, held = yardstick(bench, data.folder, out)
            peaks["duckdb"] = max(peaks["duckdb"], held)
            theirs.append(steps)
            say(f"round {number + 1}: {ours[-1]['seconds']:.1f} s, DuckDB {steps['whole']:.1f} s")
    bench.keep(warehouse)
    seconds = statistics.median(one["seconds"] for one in ours)
    duckdb = statistics.median(one["whole"] for one in theirs)
    unequal = [] if bench.options.unchecked else [t for t in TABLES if not compare(warehouse, out, t).none]
    return {
        "events": data.events,
        "session_seconds": session.session_seconds,
        "seconds": seconds,
        "first_seconds": ours[0]["seconds"],
        "duckdb_seconds": duckdb,
        "ratio_to_duckdb": seconds / duckdb,
        "events_per_second_and_core": data.events / seconds / bench.cores,
        "duckdb_events_per_second_and_core": data.events / duckdb / bench.cores,
        "peak_gb": peaks["ours"] / GB,
        "duckdb_peak_gb": peaks["duckdb"] / GB,
        "unequal_tables": unequal,
        "stages": {name: median_of(ours, name) for name in ours[0]["stages"]},
        "duckdb_steps": {name: statistics.median(one[name] for one in theirs) for name in theirs[0]},
    }


def median_of(rounds: list[dict[str, Any]], stage: str) -> float:
    return float(statistics.median(one["stages"].get(stage, 0.0) for one in rounds))


def task_stats(bench: Bench) -> dict[str, Any]:
    """task_stats at its three grains alone, exact against exact, in turns with DuckDB."""
    data = bench.history()
    truths = json.loads((data.folder / "truths.json").read_text())
    span = {"first_us": truths["from_us"], "horizon_us": truths["to_us"]}
    ours: list[float] = []
    theirs: list[float] = []
    out, folder = bench.work / "duckdb-stats", bench.work / "stats"
    with driver(bench.master) as session:
        for _ in range(bench.options.rounds + 1):
            made = session.do("task_stats", segments=str(data.folder), out=str(folder), **span)
            ours.append(made["seconds"])
            theirs.append(yardstick(bench, data.folder, out, "--only", "task_stats")[0]["task_stats"])
    seconds, duckdb = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "events": data.events,
        "session_seconds": session.session_seconds,
        "seconds": seconds,
        "first_seconds": ours[0],
        "duckdb_seconds": duckdb,
        "ratio_to_duckdb": seconds / duckdb,
        "equal": compare_folder(sorted(folder.glob("*/*.parquet")), out, "task_stats").none,
    }


def flat(bench: Bench) -> dict[str, Any]:
    """Seconds per event of histories of several sizes, each in a session of its own."""
    found: dict[str, float] = {}
    for millions in bench.options.sizes:
        data = history(bench.cache, int(millions * MILLION), bench.options.days)
        with driver(bench.master, data.events) as session:
            made = session.do("run", segments=str(data.folder), warehouse=str(bench.work / "flat"), fresh=True)
        found[f"{millions:g} million"] = made["seconds"] / data.events * MILLION
        say(f"{millions:g} million events: {made['seconds']:.1f} s")
        shutil.rmtree(bench.work / "flat")
    return {"seconds_per_million": found, "dearest_over_cheapest": max(found.values()) / min(found.values())}


def incremental(bench: Bench) -> dict[str, Any]:
    """All but the newest 1 % of a history, then that 1 %: by the session that did the rest, and by a new one."""
    data = bench.history()
    segments, later, events = cut(data.folder, bench.work / "cut", NEWEST_SHARE)
    warm, cold = bench.work / "incremental", bench.work / "incremental-cold"
    with driver(bench.master) as session:
        full = session.do("run", segments=str(segments), warehouse=str(warm), fresh=True)
        shutil.copytree(warm, cold)
        for waiting, place in later:
            waiting.rename(place)
        went_on = session.do("run", segments=str(segments), warehouse=str(warm), fresh=False)
    with driver(bench.master, events) as session:
        anew = session.do("run", segments=str(segments), warehouse=str(cold), fresh=False)
    for made in (went_on, anew):
        if made["events"] != events:
            raise RuntimeError(f"{made['events']:,} events were taken, not {events:,}")
    return {
        "full_events": full["events"],
        "full_seconds": full["seconds"],
        "new_events": events,
        "same_session_seconds": went_on["seconds"],
        "same_session_share_of_full": went_on["seconds"] / full["seconds"],
        "new_session_seconds": anew["seconds"],
        "new_session_share_of_full": anew["seconds"] / full["seconds"],
        "stages": anew["stages"],
    }


def memory(bench: Bench) -> dict[str, Any]:
    """The most that the driver and its JVM held at once in one run over the history, in a session of its own."""
    data = bench.history()
    with driver(bench.master) as session, Peak(session.pid) as peak:
        made = session.do("run", segments=str(data.folder), warehouse=str(bench.work / "memory"), fresh=True)
    bench.keep(bench.work / "memory")
    return {"events": data.events, "seconds": made["seconds"], "peak_gb": peak.bytes / GB}


def cluster(bench: Bench) -> dict[str, Any]:
    """A standalone cluster of two workers on loopback, and a local run: equal tables?"""
    data = history(bench.cache, bench.options.cluster_events, bench.options.days)
    here, there = bench.work / "local", bench.work / "cluster"
    with driver("local[1]") as session:
        alone = session.do("run", segments=str(data.folder), warehouse=str(here), fresh=True)
    with spark_cluster() as master, driver(master, **LOOPBACK) as session:
        together = session.do("run", segments=str(data.folder), warehouse=str(there), fresh=True)
    return {
        "events": data.events,
        "local_seconds": alone["seconds"],
        "cluster_seconds": together["seconds"],
        "unequal_tables": unequal_tables(here, there),
    }


LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextlib.contextmanager
def spark_cluster() -> Iterator[str]:
    """The project's own script; it ends its processes when it is ended."""
    command = [sys.executable, str(ROOT / "scripts" / "spark-cluster")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            url = child.stdout.readline().strip()
            if not url.startswith("spark://"):
                raise RuntimeError("the cluster did not start")
            yield url
        finally:
            child.terminate()


def unequal_tables(one: Path, other: Path) -> list[str]:
    """Tables of two warehouses whose rows are not the same."""
    from scale0.pipeline import reading

    def rows(warehouse: Path, table: str) -> list[str]:
        return sorted(map(repr, reading.open_arrow(warehouse, table).to_pylist()))

    names = [table for table in reading.tables(one) if table != "restatements"]
    return [table for table in names if rows(one, table) != rows(other, table)]


def report(bench: Bench) -> dict[str, Any]:
    """Every report of the last 30 days: made from the warehouse in a process that has made one before."""
    from scale0.pipeline.reports.catalog import MAKERS, make
    from scale0.pipeline.reports.query import ReportQuery

    warehouse = bench.warehouse()
    milliseconds: dict[str, float] = {}
    for name in MAKERS:
        times = []
        for _ in range(REPORT_ROUNDS + 1):
            began = time.perf_counter()
            make((name,), warehouse, ReportQuery())
            times.append((time.perf_counter() - began) * 1e3)
        milliseconds[name] = statistics.median(times[1:])
    began = time.perf_counter()
    command = [sys.executable, "-m", "scale0", "report", "availability", "--warehouse", str(warehouse)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    whole = (time.perf_counter() - began) * 1e3
    return {"milliseconds": milliseconds, "slowest_ms": max(milliseconds.values()), "command_ms": whole}


PARTS = {
    "tables": tables,
    "task_stats": task_stats,
    "flat": flat,
    "incremental": incremental,
    "memory": memory,
    "cluster": cluster,
    "report": report,
}


def say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(figure)}" for name, figure in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--events", type=int, default=20 * MILLION, help="of the history")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--history", type=Path, help="a history that is there, instead of one from the cache")
    parser.add_argument("--sizes", type=lambda text: [float(x) for x in text.split(",")], default=[5.0, 20.0, 100.0])
    parser.add_argument("--cluster-events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "scale0-bench-histories")
    parser.add_argument("--json", type=Path, help="where the figures go (default: in the cache)")
    parser.add_argument("--unchecked", action="store_true", help="do not compare the answers")
    options = parser.parse_args()
    if strange := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {min(strange)!r}; there are: {', '.join(PARTS)}")
    return options


def main() -> None:
    options = arguments()
    # Whoever is ended takes the session and the folder along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.cache.mkdir(parents=True, exist_ok=True)
    machine = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "load_before": os.getloadavg()[0]}
    print(f"{found['date']}, {machine}, Python {platform.python_version()}, load before {found['load_before']:.2f}")
    with tempfile.TemporaryDirectory(prefix="scale0-bench-", dir=options.cache) as folder:
        bench = Bench(options, Path(folder))
        for name in options.parts or PARTS:
            print(f"{name}: {(PARTS[name].__doc__ or '').strip()}", flush=True)
            found[name] = PARTS[name](bench)
            for key, value in found[name].items():
                print(f"  {key:34} {shown(value)}", flush=True)
    place = options.json or options.cache / "pipeline.json"
    place.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {place}", file=sys.stderr)


if __name__ == "__main__":
    main()
