"""A network with data for every page of the console: workers, tasks in every state, problems, and history."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.fakes.waiting import until
from tests.pipeline import reports_made
from tests.processes.console.network import Network

CRITICAL: Final = "full"
"""A check that finds something wrong."""


class SampleNetwork(NamedTuple):
    """What a page may be opened for."""

    failed: str
    """A task."""
    running: str
    finished: str
    places: dict[str, str]
    """Every page and part of a page by name, as the part of an address behind `#/`."""


@contextlib.contextmanager
def sample_network(net: Network, folder: Path) -> Iterator[SampleNetwork]:
    """Make it, and take the warehouse away at the end."""
    net.wait_for_helen()
    done = net.shell.run("check", "add", CRITICAL, "--check", "disk", "--arg", "crit=0", "--interval", "1")
    assert done.returncode == 0, done.stderr
    net.ask("POST", "/silences", {"agents": ["db-*"], "checks": ["load"], "reason": "the big import"})
    net.ask("POST", "/downtimes", downtime())
    warehouse = net.data_dir / "warehouse"
    shutil.copytree(reports_made.made(folder / "made"), warehouse)
    gate, closed = folder / "gate", folder / "closed"
    try:
        with net.worker("web-1"), net.worker("web-2"):
            failed = net.submit("mail.send", str(closed))
            running = net.submit("thumbs.make", str(closed))
            gate.touch()
            finished = net.submit("thumbs.make", str(gate))
            net.submit("nobody.offers", "this")
            net.shell.run("call", "hello", "world")
            until(lambda: net.task(failed)["status"] == "failed", "it failed")
            until(lambda: net.task(finished)["status"] == "finished", "it is done")
            until(
                lambda: any(row["check"] == CRITICAL for row in net.ask("GET", "/checks?problems=true")["items"]),
                "trouble is seen",
            )
            yield SampleNetwork(failed, running, finished, places(failed, running))
            closed.touch()  # workers finish what they have in flight
    finally:
        closed.touch()
        shutil.rmtree(warehouse)
        net.shell.run("check", "remove", CRITICAL)
        for noun in ("silences", "downtimes"):
            for each in net.ask("GET", f"/{noun}")["items"]:
                net.ask("DELETE", f"/{noun}/{each['name']}")


def downtime() -> dict[str, object]:
    """A planned one."""
    return {"agents": ["web-*"], "starts": time.time() + 86_400, "seconds": 3_600, "reason": "new disks"}


def places(failed: str, running: str) -> dict[str, str]:
    """Every page; the name is that of its picture."""
    agent = "broker-1"
    return {
        "overview": "overview",
        "topology": "topology",
        "services": "services",
        "service": "services/hello",
        "queues": "queues",
        "tasks": "tasks",
        "task-failed": f"tasks/{failed}",
        "task-running": f"tasks/{running}",
        "clients": "clients",
        "error-clients": "clients/errors",
        "agents": "agents",
        "checks": "checks",
        "check": f"checks/{agent}/{CRITICAL}",
        "incidents": "incidents?show=all",
        "silences": "silences",
        "downtimes": "silences/downtimes",
        "availability": "availability",
        "capacity": "trends/capacity",
        "requests": "trends/requests",
        "trend-tasks": "trends/tasks",
        "trend-checks": "trends/checks",
        "trend-incidents": "trends/incidents",
        "noise": "trends/noise",
        "config": "config",
        "config-history": "config/history",
        "config-compare": "config/compare",
        "events": "events",
        "audit": "audit",
        "access": "access",
    }
