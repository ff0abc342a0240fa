"""`scale0 demo`: a whole network on this machine, killed and still answering, and the report of it.

Lives here: the story, and what it promises. Never here: how processes are kept (`demo_network`), or how the history is
computed (`demo_report`). Invariant: it ends by itself, leaves nothing running, and exits with 1 if a promise was not
kept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from scale0.cli import faults, output
from scale0.cli.ending import Told, remove, told_to_end

if TYPE_CHECKING:
    from scale0.cli.demo_network import DemoNetwork
    from scale0.cli.demo_report import Counted
    from scale0.client.client import Client
    from scale0.client.task import Task

CALLS: Final = 600
IN_FLIGHT: Final = 8
KILL_AFTER: Final = 150
"""Answers before the worker is killed."""
CALLS_BEFORE: Final = 3
"""Calls that are answered before those."""
CALLS_UNDER_WAY: Final = 4
"""When the broker is killed."""
TASKS: Final = 40
TASK_SECONDS: Final = 0.25
"""So long that a slow machine, too, kills a worker before all of them are done."""
TASKS_DONE_SECONDS: Final = 30.0
CALL_SECONDS: Final = 15.0
RECORDED_SECONDS: Final = 20.0
"""Calls are summed up every ten seconds: after this long they must be in the journal."""
BACK_SECONDS: Final = 10.0
"""Within this long after a broker's restart everybody must be back."""
RETAKEN_SECONDS: Final = 6.0
"""Within this long a dead worker's work must be done: three heartbeats of a second, and a slow machine."""
LOOK_SECONDS: Final = 0.02
ONE: Final = "worker-1"
TWO: Final = "worker-2"
BROKER: Final = "demo"


class Promise(NamedTuple):
    """What was promised, and what came of it."""

    text: str
    kept: bool


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with the logs, the history and the tables.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report's page to this file (default: a new file in the folder for temporary ones).",
)
def demo(keep: bool, page: Path | None) -> None:
    """See a network work, lose workers and its broker to kill -9, and go on; then see a report of it.

    It runs on free ports in a temporary folder. The network takes half a minute; then Spark computes from its history
    what has happened, which takes a minute or two, and a report says it. Without the extra `pipeline` or without Java
    that last part is left out. Nothing stays but the report's page. Exits with 1 if anything was not as promised.

    \b
    Examples:
      scale0 demo
      scale0 demo --page report.html
    """
    from scale0.cli.child import Broken
    from scale0.cli.demo_network import DemoNetwork
    from scale0.client.errors import CallError

    began = time.monotonic()
    with told_to_end() as ending:
        folder = Path(tempfile.mkdtemp(prefix="scale0-demo-"))
        network = DemoNetwork(folder)
        left = True
        try:
            promises = ending.run(lambda: [*story(network), *the_report(network, page)])
            left = keep or not all(promise.kept for promise in promises)
        except Told:
            left = keep
            raise
        except (Broken, CallError) as error:
            raise faults.Trouble(str(error), f"the logs are in {folder}") from error
        finally:
            network.close()
            if not left:
                remove(folder)
    summary(promises, time.monotonic() - began, folder if left else None)
    if not all(promise.kept for promise in promises):
        sys.exit(faults.NO)


def heading(text: str) -> None:
    """The next chapter."""
    output.say()
    output.say(output.painted(f"== {text}", "cyan"))


def story(network: DemoNetwork) -> Iterator[Promise]:
    """Everything that is shown, in order."""
    from scale0.client.client import Client

    heading("A broker and two workers, each a process of its own")
    network.start_broker()
    output.say(f"broker    callers at {network.endpoints['frontend']}, workers at {network.endpoints['backend']}")
    for name in (ONE, TWO):
        network.start_worker(name)
        output.say(f"{name}  offers demo.greet, demo.countdown, demo.work")
    with Client(network.endpoints["frontend"], timeout=CALL_SECONDS) as client:
        yield from calls(client)
        yield from a_worker_dies(network, client)
        yield from tasks_go_on(network, client)
        yield from a_check(network)
        yield from calls_are_recorded(network)
        yield from the_broker_dies(network, client)
    yield from what_is_there(network)


def calls(client: Client) -> Iterator[Promise]:
    """A call, a call by name, a stream, and an error."""
    from scale0.client.errors import BadArguments

    heading("Calls")
    first = client.call("demo.greet", "Ada")
    output.say(f'net.call("demo.greet", "Ada")                    -> {first!r}')
    second = client.call("demo.greet", "Grace", politely=True)
    output.say(f'net.call("demo.greet", "Grace", politely=True)   -> {second!r}')
    third = list(client.stream("demo.countdown", 5))
    output.say(f'net.stream("demo.countdown", 5)                  -> {third!r}')
    error: BadArguments | None = None
    try:
        client.call("demo.greet", 42)
    except BadArguments as raised:
        error = raised
    output.say(f'net.call("demo.greet", 42)                       -> BadArguments: {error.message if error else "?"}')
    right = (first, second, third) == ("Hello, Ada!", "Good day, Grace.", [5, 4, 3, 2, 1]) and error is not None
    yield Promise("calls are answered, in parts where the function yields", right)


class Outcome:
    """What came of many calls."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong = 0
        self.longest = 0.0

    def take(self, number: int, pending: Any) -> None:
        """Wait for one, and count it."""
        from scale0.client.errors import CallError

        began = time.monotonic()
        try:
            answer = pending.result()
        except CallError as error:
            self.failed[str(error)] += 1
            return
        self.longest = max(self.longest, time.monotonic() - began)
        self.answers[answer["who"]] += 1
        self.wrong += answer["number"] != number

    @property
    def answered(self) -> int:
        """How many were answered, by whomever."""
        return sum(self.answers.values())


def many(client: Client, count: int, at: dict[int, Callable[[], None]]) -> Outcome:
    """Many calls, some in flight at once; `at` says what happens after so many answers."""
    outcome = Outcome()
    window: deque[tuple[int, Any]] = deque()
    for number in range(count):
        window.append((number, client.start("demo.work", number, retry=True)))
        if len(window) >= IN_FLIGHT:
            outcome.take(*window.popleft())
        if number in at:
            at[number]()
    while window:
        outcome.take(*window.popleft())
    return outcome


def a_worker_dies(network: DemoNetwork, client: Client) -> Iterator[Promise]:
    """kill -9 in the middle of work."""
    heading(f"kill -9 of {ONE}, while {CALLS} calls go through")

    def kill() -> None:
        pid = network.kill(ONE)
        output.say(f"after {KILL_AFTER} calls: {ONE} (process {pid}) is killed with work in its hands")

    outcome = many(client, CALLS, {KILL_AFTER: kill})
    by = ", ".join(f"{count} by {name}" for name, count in sorted(outcome.answers.items()))
    failed = sum(outcome.failed.values())
    output.say(f"{outcome.answered} answered ({by}), {failed} failed; the longest wait was {outcome.longest:.1f} s")
    for why, count in outcome.failed.most_common(3):
        output.say(f"  {count} x {why}")
    both = outcome.answers[ONE] > 0 and outcome.answers[TWO] > 0
    right = outcome.answered == CALLS and not failed and not outcome.wrong and both
    yield Promise(f"a worker dies: all {CALLS} calls are answered, its own by the other one", right)
    soon = outcome.longest < RETAKEN_SECONDS
    yield Promise(f"its work went on elsewhere after {outcome.longest:.1f} s (three heartbeats, and some)", soon)
    network.start_worker(ONE)
    output.say(f"{ONE} is started again, and is back")


def tasks_go_on(network: DemoNetwork, client: Client) -> Iterator[Promise]:
    """Durable tasks, and kill -9 of who has some of them."""
    heading(f"{TASKS} durable tasks, and kill -9 of {TWO}")
    tasks = client.submit_many("demo.work", [(number, TASK_SECONDS) for number in range(TASKS)], star=True)
    output.say(f'net.submit_many("demo.work", ...)  -> {len(tasks)} tasks, on disk before it returned')
    tasks[0].result(timeout=TASKS_DONE_SECONDS)
    pid = network.kill(TWO)
    output.say(f"{TWO} (process {pid}) is killed with tasks in its hands")
    by = results_of(tasks)
    shares = ", ".join(f"{count} by {name}" for name, count in sorted(by.items()))
    output.say(f"{by.total()} finished ({shares})")
    yield Promise(f"a worker dies: all {TASKS} tasks finish, its own at the other one", by.total() == TASKS)
    network.start_worker(TWO)
    output.say(f"{TWO} is started again, and is back")


def results_of(tasks: list[Task]) -> Counter[str]:
    """Wait for all; how many were finished by whom."""
    from scale0.client.errors import CallError

    by: Counter[str] = Counter()
    until = time.monotonic() + TASKS_DONE_SECONDS
    for number, task in enumerate(tasks):
        try:
            answer = task.result(timeout=max(0.1, until - time.monotonic()))
        except CallError as error:
            output.say(f"  {error}")
            continue
        by[answer["who"]] += answer["number"] == number
    return by


def a_check(network: DemoNetwork) -> Iterator[Promise]:
    """Helen and an agent come, and this machine is looked at."""
    heading("A Helen and an agent, that watch this machine")
    place = network.start_monitoring()
    output.say(f"Helen is at {place}, the agent has enrolled and run its first checks:")
    code, text = network.ask("checks")
    output.say(text.rstrip())
    # Whether this machine is well is its own affair: 1 says that something is wrong with it.
    right = code in (0, faults.NO) and "memory" in text
    yield Promise("an agent enrols, checks this machine, and Helen knows what it found", right)


def calls_are_recorded(network: DemoNetwork) -> Iterator[Promise]:
    """Sums of calls are made every ten seconds; a broker that is killed before loses the last one, not the calls."""
    until = time.monotonic() + RECORDED_SECONDS
    pause = threading.Event()
    wanted = CALLS_BEFORE + CALLS
    while (recorded := network.recorded_calls()) < wanted and time.monotonic() < until:
        pause.wait(10 * LOOK_SECONDS)
    yield Promise(f"all {wanted} calls so far are in the history", recorded == wanted)


def the_broker_dies(network: DemoNetwork, client: Client) -> Iterator[Promise]:
    """kill -9 of the one thing that all depend on, with a call under way."""
    heading("kill -9 of the broker, with calls under way")
    under_way = [client.start("demo.work", number, 0.5, retry=True) for number in range(CALLS_UNDER_WAY)]
    began = time.monotonic()
    pid = network.kill("broker")
    output.say(f"the broker (process {pid}) is killed")
    network.start_broker()
    started = time.monotonic() - began
    output.say(f"{started:4.1f} s  it is started again, on the same ports and the same data")
    outcome = Outcome()
    for number, pending in enumerate(under_way):
        outcome.take(number, pending)
    answered = time.monotonic() - began
    output.say(f"{answered:4.1f} s  the {outcome.answered} calls that were under way are answered")
    everybody = wait_for_backends(client, 2, BACK_SECONDS)
    back = time.monotonic() - began
    output.say(f"{back:4.1f} s  both workers are back, by themselves")
    yield Promise("the broker dies: calls under way are answered after all", outcome.answered == len(under_way))
    soon = everybody and back < BACK_SECONDS + started
    yield Promise(f"everybody was back {back - started:.1f} s after its restart", soon)


def wait_for_backends(client: Client, count: int, seconds: float) -> bool:
    """Until so many workers offer the work; False if it takes too long."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < until:
        rows = {row["service"]: row["backends"] for row in client.services()}
        if rows.get("demo.work") == count:
            return True
        pause.wait(LOOK_SECONDS)
    return False


def what_is_there(network: DemoNetwork) -> Iterator[Promise]:
    """A command, as anybody would type it."""
    heading("scale0 status")
    code, text = network.ask("status", "--data-dir", str(network.data_dir))
    output.say(text.rstrip())
    yield Promise("the command line shows it", code == 0)


def the_report(network: DemoNetwork, page: Path | None) -> Iterator[Promise]:
    """Everybody stops, which writes the history out; Spark computes, and a report says what happened."""
    from scale0.cli import demo_report

    heading("What just happened, computed by Spark")
    network.stop()
    lacking = demo_report.missing()
    if lacking:
        output.say(f"left out: {lacking}")
        return
    began = time.monotonic()
    output.say("everybody has stopped, and the history is written out: scale0 pipeline run (this takes a while)")
    demo_report.compute(network)
    demo_report.show(network)
    written = network.data_dir / "report.html"
    demo_report.write_page(network, written)
    page = page or new_page()
    shutil.copyfile(written, page)  # all at once: a demo that is ended meanwhile leaves no empty page
    output.say()
    output.say(f"all of it, with plots: {page}")
    yield from report_is_right(demo_report.counted(network))
    yield Promise(f"Spark computed it on this machine, in {time.monotonic() - began:.0f} s", True)


def report_is_right(counted: Counted) -> Iterator[Promise]:
    """Is that what we did?"""
    calls = CALLS_BEFORE + CALLS + CALLS_UNDER_WAY
    right = (counted.finished, counted.answered) == (TASKS, calls) and counted.retried > 0
    yield Promise(f"the report counts {counted.finished} tasks and {counted.answered} calls, as we do", right)
    died = [name for name in (BROKER, ONE, TWO) if name in counted.died]
    yield Promise(f"and it knows who was killed: {', '.join(died) or 'nobody'}", died == [BROKER, ONE, TWO])


def new_page() -> Path:
    """A file that nobody else has."""
    descriptor, name = tempfile.mkstemp(prefix="scale0-demo-", suffix=".html")
    os.close(descriptor)
    return Path(name)


def summary(promises: list[Promise], seconds: float, folder: Path | None) -> None:
    """What was promised, and what came of it."""
    heading(f"Summary, after {seconds:.0f} s")
    for promise in promises:
        mark = output.painted("kept  ", "green") if promise.kept else output.painted("BROKEN", "red")
        output.say(f"{mark}  {promise.text}")
    output.say()
    output.say("Nothing of it is left running." + (f" The logs are in {folder}." if folder else ""))
    output.say("Next: `scale0 up` starts a network of your own, and says what to type.")
