"""`scale0 demo`: a whole network on this machine, killed and still answering, and the report of it.

Lives here: the command, from its folder to its exit code. Never here: the story (`demo_story`), how it looks
(`demo_screen`), or the verdict (`demo_judge`). Invariant: it ends by itself, leaves nothing running, and exits with 1
if a promise was not kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from scale0.cli.common import errors
from scale0.cli.common.signals import StopRequested, remove, told_to_end

if TYPE_CHECKING:
    from scale0.cli.demo.network import DemoNetwork
    from scale0.cli.demo.output import Promise, Screen

SPARK_LINE_SECONDS: Final = 15.0
"""Between two signs of life of Spark, where they are lines."""


class DemoOutcome(NamedTuple):
    """All that the last screen shows."""

    promises: list[Promise]
    notes: list[str]
    network_seconds: float
    spark_seconds: float
    page: str

    @property
    def kept(self) -> bool:
        """True if every promise was."""
        return bool(self.promises) and all(promise.kept for promise in self.promises)


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with the logs, the history and the tables.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report's page to this file (default: a new file in the folder for temporary ones).",
)
def demo(keep: bool, page: Path | None) -> None:
    """See a network work, lose a worker and a broker to kill -9, and go on; then see a report of it.

    Two brokers of one group, three workers, a Helen and an agent run on free ports in a temporary folder. Calls and
    durable tasks go on and are counted while a worker and a broker are killed and come back, and an incident is opened
    and closed. That takes about a minute. Then Spark computes from the history of all of them what has happened, which
    takes a minute or two. Without the extra `pipeline` or without Java that part is left out. The last screen says what
    was promised and counted. Nothing stays but the report's page. Exits with 1 if anything was not as promised.

    \b
    Examples:
      scale0 demo
      scale0 demo --page report.html
    """
    from scale0.cli.common.child_process import ChildFailed
    from scale0.cli.demo.network import DemoNetwork
    from scale0.cli.demo.output import Screen, last_screen, show_last
    from scale0.errors import CallError

    with told_to_end() as ending:
        folder = Path(tempfile.mkdtemp(prefix="scale0-demo-"))
        network = DemoNetwork(folder)
        left = True
        try:
            outcome = ending.run(lambda: whole_story(network, Screen(), page))
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


def whole_story(network: DemoNetwork, screen: Screen, page: Path | None) -> DemoOutcome:
    """The network, its end, and what Spark says of it."""
    from scale0.cli.demo import judge, report, scenario

    seen = scenario.tell(network, screen)
    promises, notes = list(judge.judged(seen)), list(judge.notes(seen))
    screen.chapter("What just happened, computed by Spark")
    network.stop()
    screen.event("everybody has stopped, and the history is written out")
    network_seconds = screen.seconds
    if lacking := report.missing():
        return DemoOutcome(promises, [*notes, f"No report was made: {lacking}."], network_seconds, 0.0, "")
    screen.event("scale0 pipeline run, over the segments of both brokers and of Helen")
    screen.count, screen.line_seconds = lambda: "Spark computes", SPARK_LINE_SECONDS
    said = report.compute(network, screen.look)
    screen.count = None
    if said:
        screen.event(said.rstrip())
    written = report.write_page(network, page)
    computed = report.computed(network)
    promises += judge.spark_is_right(computed, seen)
    notes += judge.spark_notes(computed, seen)
    return DemoOutcome(promises, notes, network_seconds, screen.seconds - network_seconds, str(written))
