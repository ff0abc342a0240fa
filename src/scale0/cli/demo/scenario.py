"""The story of `scale0 demo`: a network comes up, works, loses a worker and a broker to kill -9, and goes on.

Lives here: what happens in which order, and what is looked at. Never here: how processes are kept (`demo_network`), how
it looks (`demo_screen`), or whether it was right (`demo_judge`). Invariant: work never pauses between the first kill
and the last return.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common import errors
from scale0.cli.demo import plan
from scale0.cli.demo.counts import ran_twice
from scale0.cli.demo.judge import DemoObservations, DemoTimes, ObservedIncident
from scale0.cli.demo.load import DemoLoad
from scale0.cli.demo.output import Screen, counts
from scale0.cli.demo.plan import DOOR, ONE, TWO, VICTIM
from scale0.cli.monitoring import helens

if TYPE_CHECKING:
    from scale0.cli.demo.network import DemoNetwork
    from scale0.client.client import Client

LOOK_SECONDS: Final = 3.0
"""How long one look at the network may take while part of it is dead."""


def tell(network: DemoNetwork, screen: Screen) -> DemoObservations:
    """Everything that is shown, in order, until nobody asks anything any more."""
    from scale0.client.client import Client

    starting(network, screen)
    with Client(network.frontends, timeout=LOOK_SECONDS, patience=LOOK_SECONDS) as eye:
        define_checks(network, eye)
        network.start_monitoring()
        greeted = calls(eye, screen)
        work = DemoLoad(network.frontends)
        screen.count = lambda: counts(work.ledger.totals())
        try:
            marks, incident, pids = working(network, screen, eye, work)
            work.stop()
        except BaseException:
            work.abandon()
            raise
        screen.event(counts(work.ledger.totals()))
        screen.count = None
    pages = network.runs.read_text().splitlines() if network.runs.exists() else []
    return DemoObservations(work.ledger, marks, ran_twice(pages, pids), incident, greeted)


def working(
    network: DemoNetwork, screen: Screen, eye: Client, work: DemoLoad
) -> tuple[DemoTimes, ObservedIncident | None, frozenset[int]]:
    """Everything that happens while calls and tasks go on; with the numbers of the processes that were killed."""
    screen.chapter(f"Work: {len(plan.CALLERS)} clients call, {len(plan.SUBMITTERS)} submit durable tasks")
    work.start()
    watching(network, screen, eye)
    screen.wait(plan.BEFORE_SECONDS)
    killed, pid, over = a_worker_dies(network, screen)
    told = a_broker_dies(network, screen, eye)
    screen.wait(plan.AFTER_SECONDS)
    screen.event("nothing new is asked; what was acknowledged is waited for")
    marks = DemoTimes(killed, over, told.killed, told.back, told.home, told.killed_wall, told.back_wall)
    return marks, told.incident, frozenset({pid})


def starting(network: DemoNetwork, screen: Screen) -> None:
    """Everybody at once; each is a process of its own."""
    screen.chapter("Two brokers of one group, and three workers, each a process of its own")
    one = network.start_broker(ONE)
    two = network.start_broker(TWO)
    one.ready()
    workers = [network.start_worker(name) for name in plan.HOMES]
    two.ready()
    for name in plan.BROKERS:
        places = f"callers {network.endpoint(name, 'frontend')}, workers {network.endpoint(name, 'backend')}"
        screen.event(f"{name:9} {places}")
    for child in workers:
        child.ready()
        home = plan.HOMES[child.name]
        screen.event(
            f"{child.name:9} belongs to {home}, knows {TWO if home == ONE else ONE}, offers demo.work and more"
        )


def define_checks(network: DemoNetwork, eye: Client) -> None:
    """What is watched: this machine, and whether the first broker answers."""
    place = {"host": "127.0.0.1", "port": network.port(ONE, "frontend")}
    checks: list[dict[str, Any]] = [{"name": name, "interval": 10} for name in ("disk", "load", "memory")]
    checks.append({"name": DOOR, "check": "tcp", "args": place, "interval": 1, "timeout": 1, "max_attempts": 2})
    eye.manage("patch_config", set={"checks": checks}, auth_token=network.token(ONE))


def calls(eye: Client, screen: Screen) -> bool:
    """A call, a call by name, a stream, and an error."""
    from scale0.errors import BadArguments

    screen.chapter("Calls")
    first = eye.call("demo.greet", "Ada")
    screen.plain(f'net.call("demo.greet", "Ada")                   -> {first!r}')
    second = eye.call("demo.greet", "Grace", politely=True)
    screen.plain(f'net.call("demo.greet", "Grace", politely=True)  -> {second!r}')
    third = list(eye.stream("demo.countdown", 5))
    screen.plain(f'net.stream("demo.countdown", 5)                 -> {third!r}')
    error: BadArguments | None = None
    try:
        eye.call("demo.greet", 42)
    except BadArguments as raised:
        error = raised
    screen.plain(f'net.call("demo.greet", 42)                      -> {type(error).__name__}: it is no name')
    return (first, second, third) == ("Hello, Ada!", "Good day, Grace.", [5, 4, 3, 2, 1]) and error is not None


def watching(network: DemoNetwork, screen: Screen, eye: Client) -> None:
    """Until the agent has looked at everything once."""
    screen.event("a Helen and an agent start, to watch this machine")
    screen.until(network.is_watched, plan.INCIDENT_SECONDS)
    place = network.watched()
    screen.event(f"Helen is at {place}; the agent has enrolled and runs its checks")
    screen.until(lambda: any(row["check"] == DOOR for row in asked(eye, "checks", {})), plan.INCIDENT_SECONDS)
    for row in sorted(asked(eye, "checks", {}), key=lambda each: str(each["check"])):
        screen.plain(f"           {row['check']:15} {row['state']:8} {row['message']}"[:80])


def asked(eye: Client, view: str, about: dict[str, Any]) -> list[dict[str, Any]]:
    """What Helen says; nothing while nobody can ask her."""
    from scale0.errors import CallError

    with contextlib.suppress(CallError, errors.CommandError):
        return helens.ask(eye, view, about).rows
    return []


def a_worker_dies(network: DemoNetwork, screen: Screen) -> tuple[float, int, float]:
    """kill -9 with work in its hands; when it was, which process, and until when it may have been felt."""
    screen.chapter(f"kill -9 of {VICTIM}")
    killed = time.monotonic()
    pid = network.kill(VICTIM)
    screen.event(f"{VICTIM} (process {pid}) is killed, with calls and tasks in its hands", "red")
    screen.wait(plan.BEFORE_SECONDS)
    child = network.start_worker(VICTIM)
    screen.until(child.is_ready, plan.HOME_SECONDS)
    screen.event(f"{child.ready().split()[1]} is started again, and is back", "green")
    return killed, pid, time.monotonic()


class ScenarioResult:
    """What came of a broker's death."""

    def __init__(self) -> None:
        self.killed = self.back = 0.0
        self.killed_wall = self.back_wall = 0.0
        self.home: float | None = None
        self.incident: ObservedIncident | None = None


def a_broker_dies(network: DemoNetwork, screen: Screen, eye: Client) -> ScenarioResult:
    """kill -9 of the broker that most belong to; it comes back once Helen has noticed."""
    from scale0.client.client import Client

    screen.chapter(f"kill -9 of the broker {ONE}, to which all clients, two workers and Helen belong")
    told = ScenarioResult()
    told.killed, told.killed_wall = time.monotonic(), time.time()
    pid = network.kill(ONE)
    screen.event(f"{ONE} (process {pid}) is killed; everybody looks for {TWO}", "red")

    def seen(true: Callable[[ObservedIncident], bool]) -> Callable[[], bool]:
        def look() -> bool:
            told.incident = incident_since(eye, told.killed_wall) or told.incident
            return told.incident is not None and true(told.incident)

        return look

    if screen.until(seen(lambda _: True), plan.INCIDENT_SECONDS):
        screen.event(f"Helen opens an incident: {DOOR} is critical", "red")
    child = network.start_broker(ONE)
    screen.until(child.is_ready, plan.HOME_SECONDS)
    child.ready()
    told.back, told.back_wall = time.monotonic(), time.time()
    screen.event(f"{ONE} is started again, on the same ports and the same data", "green")
    if screen.until(seen(lambda incident: incident.closed is not None), plan.INCIDENT_SECONDS):
        screen.event(f"Helen closes the incident: {DOOR} is ok", "green")
    with Client(network.endpoint(ONE, "frontend"), timeout=LOOK_SECONDS, patience=LOOK_SECONDS) as there:
        if screen.until(lambda: everybody_is_home(there), plan.HOME_SECONDS):
            told.home = time.monotonic()
            screen.event(f"clients, workers and Helen are back at {ONE}, by themselves", "green")
    code, text = network.ask("incidents", "--all", "--check", DOOR)
    screen.plain("\nscale0 incidents --all\n" + text if code == 0 else text)
    return told


def incident_since(eye: Client, since: float) -> ObservedIncident | None:
    """The first one of the broker's check since it was killed."""
    rows = [row for row in asked(eye, "incidents", {"open": False, "check": DOOR}) if row["opened"] >= since]
    if not rows:
        return None
    first = min(rows, key=lambda row: float(row["opened"]))
    return ObservedIncident(first["opened"], first["closed"])


def everybody_is_home(there: Client) -> bool:
    """True if all that belong to the first broker are at it."""
    from scale0.errors import CallError

    workers = {name for name, home in plan.HOMES.items() if home == ONE}
    wanted = {*workers, *plan.CALLERS, *plan.SUBMITTERS, f"helen-{plan.WATCHER}"}
    with contextlib.suppress(CallError):
        return there.ping()["broker"] == ONE and wanted <= {row["identity"] for row in there.clients()}
    return False
