"""What `scale0 demo` does: a network starts, works, loses a worker and a broker to SIGKILL, and goes on.

The load never pauses between the first kill and the last return.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common import errors
from scale0.cli.common.child_process import START_SECONDS, CommandProcess
from scale0.cli.common.endpoints import DEFAULT_HOST
from scale0.cli.demo.audit import RecordedRuns
from scale0.cli.demo.load import Load, Source, batches, calls
from scale0.cli.demo.output import Screen
from scale0.cli.demo.promises import (
    AGENT,
    BROKER_CHECK,
    ONE,
    TWO,
    VICTIM,
    DemoObservations,
    DemoTimes,
    ObservedIncident,
)
from scale0.cli.monitoring import helens

if TYPE_CHECKING:
    from scale0.cli.demo.local_network import LocalNetwork
    from scale0.client.client import Client

BROKERS: Final = (ONE, TWO)
HOMES: Final = {"worker-1": ONE, "worker-2": ONE, "worker-3": TWO}
"""The workers and the broker that each prefers; each knows the address of the other broker, too."""
SEGMENT_SECONDS: Final = 10.0
"""Segments are exported this often, so that little is left to export when the network stops."""
CALLERS: Final = tuple(f"caller-{number}" for number in range(1, 7))
"""Each is a client of its own: a client that is never idle would stay with the broker that accepted it."""
SUBMITTERS: Final = tuple(f"submitter-{number}" for number in range(1, 5))
BATCH: Final = 3
CALL_SECONDS: Final = 0.1
PAUSE_SECONDS: Final = 0.05
"""Of a client between two calls or batches: it is idle then, and may move back to its broker."""
TASK_SECONDS: Final = 0.4
"""Long enough that a killed worker has some of them in flight."""
ANSWER_SECONDS: Final = 30.0
BEFORE_SECONDS: Final = 4.0
"""Of load before the first kill."""
AFTER_SECONDS: Final = 3.0
"""Of load after all processes are back."""
INCIDENT_SECONDS: Final = 30.0
"""For Helen to open an incident, and to close it."""
HOME_SECONDS: Final = 60.0
"""Within this time after a broker's restart all of its clients must be back."""
SETTLE_SECONDS: Final = 60.0
"""For all tasks to end after the last submission."""
QUERY_SECONDS: Final = 3.0
"""For one query while a part of the network is dead."""


def play(network: LocalNetwork, screen: Screen) -> DemoObservations:
    """Everything that is shown, until the load has ended."""
    from scale0.client.client import Client

    start_network(network, screen)
    with Client(network.frontends, timeout=QUERY_SECONDS, patience=QUERY_SECONDS) as client:
        define_checks(network, client)
        network.start_monitoring(ONE, AGENT)
        first_calls_right = first_calls(client, screen)
        load = new_load(network.frontends)
        screen.count = load.record.counts
        try:
            times, incident, killed_pid = disturb(network, screen, client, load)
            load.stop(SETTLE_SECONDS)
        except BaseException:
            load.abandon()
            raise
        screen.event(load.record.counts())
        screen.count = None
    runs = RecordedRuns(network.runs.read_text().splitlines() if network.runs.exists() else ())
    repeated = runs.repeated(frozenset({killed_pid}))
    return DemoObservations(load.record, times, repeated, incident, first_calls_right)


def new_load(endpoints: list[str]) -> Load:
    caller = calls("demo.work", CALL_SECONDS, PAUSE_SECONDS)
    submitter = batches("demo.build", TASK_SECONDS, BATCH, PAUSE_SECONDS)
    sources: dict[str, Source] = {**dict.fromkeys(CALLERS, caller), **dict.fromkeys(SUBMITTERS, submitter)}
    return Load(endpoints, sources, ANSWER_SECONDS)


def disturb(
    network: LocalNetwork, screen: Screen, client: Client, load: Load
) -> tuple[DemoTimes, ObservedIncident | None, int]:
    """All that happens under load: the times, the incident, and the process id of the killed worker."""
    screen.section(f"Load: {len(CALLERS)} clients call, {len(SUBMITTERS)} submit durable tasks")
    load.start()
    show_monitoring(network, screen, client)
    screen.wait(BEFORE_SECONDS)
    killed, pid, over = kill_worker(network, screen)
    times, incident = kill_broker(network, screen, client)
    screen.wait(AFTER_SECONDS)
    screen.event("no new calls and tasks; waiting for those that were acknowledged")
    return times._replace(worker_killed=killed, worker_over=over), incident, pid


def start_broker(network: LocalNetwork, name: str) -> CommandProcess:
    """One of the two; the second one gets its configuration from the first."""
    config = network.folder / f"{name}.json"
    settings: dict[str, Any] = {"segment_seconds": SEGMENT_SECONDS, "config_service": name == ONE}
    if name == ONE:
        settings["state"] = "active"
    config.write_text(json.dumps(settings))
    options = ["--config", str(config), "--group", "demo"]
    if name == TWO:
        options += ["--join", f"{DEFAULT_HOST}:{network.port(ONE, 'peer')}"]
    return network.start_broker(name, network.data_dir / name, *options)


def start_worker(network: LocalNetwork, name: str) -> CommandProcess:
    order = sorted(BROKERS, key=lambda broker: broker != HOMES[name])
    return network.start_worker(name, "demo", [network.endpoint(broker, "backend") for broker in order])


def start_network(network: LocalNetwork, screen: Screen) -> None:
    screen.section("Two brokers of one group and three workers, each a process of its own")
    one, two = start_broker(network, ONE), start_broker(network, TWO)
    one.ready()
    workers = [start_worker(network, name) for name in HOMES]
    two.ready()
    for name in BROKERS:
        frontend, backend = network.endpoint(name, "frontend"), network.endpoint(name, "backend")
        screen.event(f"{name:9} frontend {frontend}, backend {backend}")
    for child in workers:
        child.ready()
        home = HOMES[child.name]
        other = TWO if home == ONE else ONE
        screen.event(f"{child.name:9} prefers {home}, knows {other}, offers demo.work and others")


def define_checks(network: LocalNetwork, client: Client) -> None:
    """Check this machine, and whether the first broker accepts connections."""
    target = {"host": DEFAULT_HOST, "port": network.port(ONE, "frontend")}
    checks: list[dict[str, Any]] = [{"name": name, "interval": 10} for name in ("disk", "load", "memory")]
    checks.append(
        {"name": BROKER_CHECK, "check": "tcp", "args": target, "interval": 1, "timeout": 1, "max_attempts": 2}
    )
    client.manage("patch_config", set={"checks": checks}, auth_token=network.token(ONE))


def first_calls(client: Client, screen: Screen) -> bool:
    """A call, a call with a named argument, a stream and an error; True if all are right."""
    from scale0.errors import BadArguments

    screen.section("Calls")
    first = client.call("demo.greet", "Ada")
    screen.plain(f'net.call("demo.greet", "Ada")                   -> {first!r}')
    second = client.call("demo.greet", "Grace", politely=True)
    screen.plain(f'net.call("demo.greet", "Grace", politely=True)  -> {second!r}')
    third = list(client.stream("demo.countdown", 5))
    screen.plain(f'net.stream("demo.countdown", 5)                 -> {third!r}')
    error: BadArguments | None = None
    try:
        client.call("demo.greet", 42)
    except BadArguments as raised:
        error = raised
    screen.plain(f'net.call("demo.greet", 42)                      -> {type(error).__name__}: 42 is not a string')
    return (first, second, third) == ("Hello, Ada!", "Good day, Grace.", [5, 4, 3, 2, 1]) and error is not None


def show_monitoring(network: LocalNetwork, screen: Screen, client: Client) -> None:
    """Wait until the agent has run every check once."""
    screen.event("a Helen and an agent start, to monitor this machine")
    screen.until(network.monitoring_is_ready, INCIDENT_SECONDS)
    address = network.helen_address()
    screen.event(f"Helen listens at {address}; the agent has enrolled and runs its checks")
    screen.until(lambda: any(row["check"] == BROKER_CHECK for row in rows_of(client, "checks", {})), INCIDENT_SECONDS)
    for row in sorted(rows_of(client, "checks", {}), key=lambda each: str(each["check"])):
        screen.plain(f"           {row['check']:15} {row['state']:8} {row['message']}"[:80])


def rows_of(client: Client, view: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    """What Helen answers; nothing while she cannot be reached."""
    from scale0.errors import CallError

    with contextlib.suppress(CallError, errors.CommandError):
        return helens.ask(client, view, query).rows
    return []


def kill_worker(network: LocalNetwork, screen: Screen) -> tuple[float, int, float]:
    """When it was killed, its process id, and until when that may have had an effect."""
    screen.section(f"kill -9 of {VICTIM}")
    killed = time.monotonic()
    pid = network.pids()[VICTIM]
    network.kill(VICTIM)
    screen.event(f"{VICTIM} (process {pid}) is killed, with calls and tasks in flight", "red")
    screen.wait(BEFORE_SECONDS)
    child = start_worker(network, VICTIM)
    screen.until(child.is_ready, HOME_SECONDS)
    screen.event(f"{child.ready().split()[1]} is started again and is ready", "green")
    return killed, pid, time.monotonic()


def kill_broker(network: LocalNetwork, screen: Screen, client: Client) -> tuple[DemoTimes, ObservedIncident | None]:
    """Kill the broker that most clients prefer, and start it again once Helen has opened an incident."""
    from scale0.client.client import Client

    screen.section(f"kill -9 of the broker {ONE}, which all clients, two workers and Helen prefer")
    killed, killed_wall = time.monotonic(), time.time()
    pid = network.pids()[ONE]
    network.kill(ONE)
    screen.event(f"{ONE} (process {pid}) is killed; its clients connect to {TWO}", "red")
    incident: ObservedIncident | None = None

    def incident_is(right: Callable[[ObservedIncident], bool]) -> Callable[[], bool]:
        def query() -> bool:
            nonlocal incident
            incident = incident_since(client, killed_wall) or incident
            return incident is not None and right(incident)

        return query

    if screen.until(incident_is(lambda _: True), INCIDENT_SECONDS):
        screen.event(f"Helen opens an incident: {BROKER_CHECK} is critical", "red")
    child = start_broker(network, ONE)
    screen.until(child.is_ready, HOME_SECONDS)
    child.ready()
    back, back_wall = time.monotonic(), time.time()
    screen.event(f"{ONE} is started again, with the same ports and the same data", "green")
    if screen.until(incident_is(lambda found: found.closed is not None), INCIDENT_SECONDS):
        screen.event(f"Helen closes the incident: {BROKER_CHECK} is ok", "green")
    home: float | None = None
    with Client(network.endpoint(ONE, "frontend"), timeout=QUERY_SECONDS, patience=QUERY_SECONDS) as there:
        if screen.until(lambda: all_are_home(there), HOME_SECONDS):
            home = time.monotonic()
            screen.event(f"clients, workers and Helen have returned to {ONE} by themselves", "green")
    show_incidents(network, screen)
    return DemoTimes(0.0, 0.0, killed, back, home, killed_wall, back_wall), incident


def show_incidents(network: LocalNetwork, screen: Screen) -> None:
    join = network.endpoint(ONE, "frontend").removeprefix("tcp://")
    words = ("incidents", "--all", "--check", BROKER_CHECK, "--join", join)
    environment = {"XDG_STATE_HOME": str(network.folder / "state")}  # the user's own state file stays as it is
    code, text, trouble = network.run(words, START_SECONDS, subprocess.PIPE, environment)
    screen.plain(("\nscale0 incidents --all\n" if code == 0 else "") + text + trouble)


def incident_since(client: Client, since: float) -> ObservedIncident | None:
    rows = rows_of(client, "incidents", {"open": False, "check": BROKER_CHECK})
    opened = [row for row in rows if row["opened"] >= since]
    if not opened:
        return None
    first = min(opened, key=lambda row: float(row["opened"]))
    return ObservedIncident(first["opened"], first["closed"])


def all_are_home(there: Client) -> bool:
    """True if all clients that prefer the first broker are connected to it."""
    from scale0.errors import CallError

    workers = {name for name, home in HOMES.items() if home == ONE}
    wanted = {*workers, *CALLERS, *SUBMITTERS, f"helen-{AGENT}"}
    with contextlib.suppress(CallError):
        return there.ping()["broker"] == ONE and wanted <= {row["identity"] for row in there.clients()}
    return False


def segment_folders(network: LocalNetwork) -> list[Path]:
    homes = [*(network.data_dir / name for name in BROKERS), network.data_dir / "monitoring" / "helen"]
    return [home / "segments" for home in homes]
