"""`scale0 demo`: a whole network on this machine that survives SIGKILL, and a report about it.

The command ends by itself, leaves nothing running, and exits with 1 if a promise was not kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from scale0.cli.common import errors
from scale0.cli.common.child_process import ChildFailed
from scale0.cli.common.signals import StopRequested, remove, stop_on_signal
from scale0.cli.demo.local_network import LocalNetwork
from scale0.cli.demo.output import Screen, last_screen, show_last

if TYPE_CHECKING:
    from scale0.cli.demo.promises import Promise

SPARK_LINE_SECONDS: Final = 15.0
"""Between two progress lines while Spark computes, without a terminal."""


class DemoOutcome(NamedTuple):
    promises: list[Promise]
    notes: list[str]
    network_seconds: float
    spark_seconds: float = 0.0
    page: str = ""

    @property
    def kept(self) -> bool:
        return bool(self.promises) and all(promise.kept for promise in self.promises)


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with logs, history and tables.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the HTML report to this file (default: a new temporary file).",
)
def demo(keep: bool, page: Path | None) -> None:
    """Run a demo network that loses no work to kill -9.

    Two brokers of one group, three workers, a Helen and an agent run on free ports in a temporary folder. Clients send
    calls and durable tasks while a worker and a broker are killed with SIGKILL and started again, and Helen opens and
    closes an incident. This takes about a minute. Then Spark computes a report from the history of all processes, which
    takes a minute or two; without the extra `pipeline` or without Java this part is skipped. The last screen compares
    the promises with the counts. Only the HTML report stays. Exits with 1 if a promise was not kept.

    \b
    Examples:
      scale0 demo
      scale0 demo --page report.html
    """
    from scale0.cli.demo.scenario import BROKERS
    from scale0.errors import CallError

    with stop_on_signal() as signals:
        folder = Path(tempfile.mkdtemp(prefix="scale0-demo-"))
        network = LocalNetwork(folder, BROKERS)
        left = True
        try:
            outcome = signals.run(lambda: run_demo(network, Screen(), page))
            left = keep or not outcome.kept
        except StopRequested:
            left = keep
            raise
        except (ChildFailed, CallError) as error:
            raise errors.CommandError(str(error), f"the logs are in {folder}") from error
        finally:
            network.close()
            if not left:
                remove(folder)
    seconds = (outcome.network_seconds, outcome.spark_seconds)
    show_last(last_screen(outcome.promises, outcome.notes, seconds, outcome.page, str(folder) if left else ""))
    if not outcome.kept:
        sys.exit(errors.NO)


def run_demo(network: LocalNetwork, screen: Screen, page: Path | None) -> DemoOutcome:
    """The network from start to end, and what Spark computes from its history."""
    from scale0.cli.demo import promises, report, scenario

    seen = scenario.play(network, screen)
    checked, notes = list(promises.network_promises(seen)), list(promises.network_notes(seen))
    screen.section("The report, computed by Spark")
    network.stop()
    screen.event("all processes have stopped, and their history is exported")
    network_seconds = screen.seconds
    if lacking := report.missing():
        return DemoOutcome(checked, [*notes, f"No report was made: {lacking}."], network_seconds)
    screen.event("scale0 pipeline run, over the segments of both brokers and of Helen")
    screen.count, screen.line_seconds = lambda: "Spark computes", SPARK_LINE_SECONDS
    text = report.compute(network, screen.refresh)
    screen.count = None
    if text:
        screen.event(text.rstrip())
    written = report.write_page(network, page)
    computed = report.computed(network)
    checked += promises.spark_promises(computed, seen)
    notes += promises.spark_notes(computed, seen)
    return DemoOutcome(checked, notes, network_seconds, screen.seconds - network_seconds, str(written))
