"""`scale0 doctor`: check that this machine is fit for a network, and how to repair what is not.

The command never fails because of a problem: it reports it. `fail` is what keeps a network from working or its secrets
from being secret; `warn` will become a problem or limits a feature. Every finding that is not ok has a next step.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from scale0.cli.broker.command import PORTS
from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import CONSOLE_PORT, HELEN_PORT, join_option
from scale0.cli.common.options import json_option
from scale0.cli.network.listing import counted
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret
from scale0.kernel.errors import ConfigError, Scale0Error

if TYPE_CHECKING:
    from scale0.broker.core.keys import Key
    from scale0.cli.network.host_readings import ClockReading, DiskReading, JavaReading, PortReading
    from scale0.config import BrokerConfig

FAULT: Final = re.compile(r"(.*): ((?:chmod|rm) .*)", re.DOTALL)
"""What is wrong with a file, and the command that corrects it."""
EXTRAS: Final = {
    "pipeline": ("pyspark", "pandas", "duckdb", "numpy"),
    "postgres": ("psycopg",),
    "otlp": ("opentelemetry.sdk",),
}
"""The modules of each extra of the package."""
ANSWER_SECONDS: Final = 2.0
"""How long a broker may take to answer."""
COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH: Final = 80
NAME_WIDTH: Final = 9

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

OUR_PROGRAM: Final = re.compile(r"(?:^|[ /])scale0(?:\.[a-z_.]+)?(?: |$)")
"""In a command line: `…/bin/scale0 up`, `python -m scale0 broker`, `python -P -m scale0.http`."""
OTHER_PORTS: Final = {
    "management": "choose another port as `management.port` in the broker's file",
    "helen": "choose another port as `helen_port` in Helen's file",
}
PYTHON: Final = (3, 11)
JAVA: Final = 17
GET_JAVA: Final = "sudo apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
GET_PIPELINE: Final = "pip install 'scale0[pipeline]'"
DAY_SECONDS: Final = 86_400.0
SOON_DAYS: Final = 14
"""A certificate that expires sooner should have been renewed."""
SMALL_SKEW_SECONDS: Final = 1.0
JUMP_SECONDS: Final = 0.5
"""The maximum difference between both clocks during the check."""
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
LOW_DISK_BYTES: Final = GIB
SLOW_SYNC_SECONDS: Final = 0.05
STUCK_SYNC_SECONDS: Final = 1.0
"""Every acknowledgement waits for a sync: a broker with such a disk seems dead."""
NETWORK_KINDS: Final = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "afs", "fuse.sshfs", "fuse.s3")
FEW_FILES: Final = 1_024
SPARE_FILES: Final = 100
"""Descriptors of a broker in addition to its clients: sockets, store, segments."""
LITTLE_BYTES: Final = 256 * MIB
TOO_LITTLE_BYTES: Final = 64 * MIB


class DoctorFinding(NamedTuple):
    probe: str
    state: str
    words: str
    next: str = ""


class ReachedBroker(NamedTuple):
    """What the broker at --join answered."""

    identity: str = ""
    trouble: str = ""
    offset: float | None = None
    """Our clock minus its clock, in seconds."""
    version: str | None = None
    ports: frozenset[int] = frozenset()
    clock_suspect: bool = False
    warnings: tuple[str, ...] = ()
    """About its network document."""


@click.command()
@join_option
@click.option(
    "--data-dir", envvar=DATA_DIR, help=f"The folder of a broker that runs or will run here ({LOCAL_FOLDER})."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The broker's file, for its ports and other settings.",
)
@json_option
@click.pass_context
def doctor(context: click.Context, join: str, data_dir: str | None, config_file: Path | None, wants_json: bool) -> None:
    """Check that this machine is fit for Scale0.

    Each problem has a next step. The command checks Python and the extras, ZeroMQ, ports, keys and certificates, the
    clock, Java, the disk, limits, memory, the console's pages, and the broker at --join. It changes nothing. Exits with
    1 if a check failed; a warning is not a failure.

    \b
    With --json, an array of objects:
      probe   python, extras, ports, keys, certs, clock, java, disk, files,
              memory, console or broker; one may occur more than once
      state   ok, warn or fail
      words   what was found
      next    the next step; blank if it is ok

    \b
    Examples:
      scale0 doctor
      scale0 doctor --config east-1.zpl
      scale0 doctor --join broker.example.com --json | jq '.[] | select(.state != "ok")'
    """
    from scale0.config import BrokerConfig
    from scale0.config.edge.files import read_config

    config = read_config(config_file, BrokerConfig) if config_file else BrokerConfig()
    folder = Path(data_dir or (config.data_dir if config_file else LOCAL_FOLDER))
    named = context.get_parameter_source("join") is not ParameterSource.DEFAULT
    found = list(examined(config, config_file is not None, folder, join, named))
    if wants_json:
        output.say(output.as_json([one._asdict() for one in found]))
    else:
        for one in found:
            show(one)
        output.say(f"\n{verdict(found)}")
    if any(one.state == "fail" for one in found):
        sys.exit(errors.NO)


def examined(config: BrokerConfig, configured: bool, folder: Path, join: str, named: bool) -> Iterator[DoctorFinding]:
    """Every finding, in the order in which one would repair them."""
    from scale0 import __version__
    from scale0.cli.network import host_readings
    from scale0.http.console_pages import FOLDER

    before = host_readings.read_clock()
    there = {name: host_readings.installed(modules) for name, modules in EXTRAS.items()}
    pipeline = there["pipeline"]
    reached = reach(join, folder)
    yield python_finding(tuple(sys.version_info[:3]), platform.python_implementation())
    yield extras_finding(there)
    yield from port_findings(
        host_readings.read_ports(ports_of(config), config.bind), required_ports(config, configured), reached.ports
    )
    yield from secret_findings(folder, bool(config.curve), before.wall)
    for warning in reached.warnings:
        what, _, fix = warning.partition(": ")
        yield DoctorFinding("keys", WARN, what, fix)
    yield java_finding(host_readings.read_java(os.environ), pipeline)
    yield from disk_findings(host_readings.read_disk(folder), config.min_free_bytes or 0)
    yield files_finding(host_readings.max_files(), config.max_clients)
    yield memory_finding(*host_readings.memory(), pipeline)
    yield console_finding((FOLDER / "index.html").is_file())
    after, synchronised = host_readings.read_clock(), host_readings.is_synchronised()
    yield from clock_findings(before, after, synchronised, reached.offset, config.max_clock_skew, reached.clock_suspect)
    versions = None if reached.version is None else (reached.version, __version__)
    yield broker_finding(join.removeprefix("tcp://"), reached.identity, named, versions, reached.trouble)


def ports_of(config: BrokerConfig) -> dict[str, int]:
    own = {name: getattr(config, f"{name}_port") for name in PORTS}
    return {**own, "management": config.management.port or CONSOLE_PORT, "helen": HELEN_PORT}


def required_ports(config: BrokerConfig, configured: bool) -> frozenset[str]:
    served = ("management",) if config.management.enabled else ()
    return frozenset({*PORTS, *served} if configured else ())


def secret_findings(folder: Path, curve: bool, wall: float) -> Iterator[DoctorFinding]:
    """Keys, tokens and certificates of the broker, of Helen and of the agent of a folder, and of this user."""
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.monitoring.agent.edge.certificate import read_certificate
    from scale0.transport.edge.client_keys import certificates_in
    from scale0.transport.edge.curve_certificates import private_faults
    from scale0.transport.edge.local_keys import config_folder

    own = KeyFolder(folder)
    helen, agent = folder / "monitoring" / "helen", folder / "monitoring" / "agent"
    private = [folder / TOKEN_FILE, *folder.glob("*-key.pem"), *helen.glob("*-key.pem"), *agent.glob("*-key.pem")]
    wrong = own.check() + [fault for path in private for fault in private_faults(path)]
    for path, certificate, fault in certificates_in(config_folder(os.environ)):
        if certificate is None:
            wrong.append(fault if ": chmod " in fault else f"{fault}: rm {path}")
    yield from key_findings(wrong, own.server_file.exists(), curve)
    with contextlib.suppress(OSError):  # there are no keys, or the broker reports it
        yield from expiry_findings(own.table(wall).keys, wall)
    for whose, home in (("helen", helen), ("agent", agent), ("helen", folder), ("agent", folder)):
        with contextlib.suppress(ConfigError):  # there is none, or it is invalid: its process reports that
            yield certificate_finding(whose, read_certificate(home / f"{whose}.pem").not_after, wall)


def reach(join: str, folder: Path) -> ReachedBroker:
    """Ask the broker for its identity and time, and with its token for its status."""
    from scale0.cli.network.host_readings import read_clock

    try:
        with connect(join, ANSWER_SECONDS, ANSWER_SECONDS) as client:
            before = read_clock()
            ping = client.ping()
            after = read_clock()
            offset = (before.wall + after.wall) / 2 - ping["time"]
            status: dict[str, Any] = {}
            warnings: tuple[str, ...] = ()
            token = read_secret(folder / TOKEN_FILE)
            if token is not None:
                with contextlib.suppress(Scale0Error):  # it may belong to another broker
                    status = client.manage("status", auth_token=token)
                    warnings = document_warnings(client.manage("get_config", auth_token=token))
    except (Scale0Error, OSError, errors.CommandError) as error:
        return ReachedBroker(trouble=getattr(error, "message", str(error)))
    numbers = (endpoint.rpartition(":")[2] for endpoint in status.get("endpoints", {}).values() if endpoint)
    ours = frozenset(int(number) for number in numbers if number.isdigit())
    suspect = bool(status.get("clock_suspect"))
    return ReachedBroker(ping["broker"], "", offset, status.get("version"), ours, suspect, warnings)


def document_warnings(found: dict[str, Any]) -> tuple[str, ...]:
    """The literal secrets of a network document; none if a later version wrote it."""
    from scale0.cli.network.config import document_of
    from scale0.config.literal_secrets import literal_secrets

    try:
        return tuple(literal_secrets(document_of(found)))
    except ConfigError:
        return ()


def show(one: DoctorFinding) -> None:
    for line in lines_of(one):
        head, _, rest = line.partition(" ")
        output.say(f"{output.painted(head, COLOURS[head])} {rest}" if head in COLOURS else line)


def lines_of(one: DoctorFinding) -> list[str]:
    """At most 80 columns each; long texts are wrapped."""
    indent = " " * (len("fail  ") + NAME_WIDTH)
    lines = _wrapped(output.clean(one.words), f"{one.state:<6}{one.probe:<{NAME_WIDTH}}", indent)
    if one.next:
        lines += _wrapped(output.clean(one.next), f"{indent}next: ", f"{indent}      ")
    return lines


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def verdict(found: list[DoctorFinding]) -> str:
    failed, warned = (sum(one.state == state for one in found) for state in ("fail", "warn"))
    if failed:
        return f"{failed} failed, {counted(warned, 'warning')}: repair what failed first."
    return f"Nothing failed; {counted(warned, 'warning')}." if warned else "No problems."


def python_finding(version: Sequence[int], implementation: str) -> DoctorFinding:
    words = f"{implementation} {'.'.join(map(str, version[:3]))}"
    if tuple(version[:2]) < PYTHON:
        return DoctorFinding(
            "python", FAIL, f"{words}: 3.11 or later is required", "install a newer Python: python3 --version"
        )
    if implementation != "CPython":
        return DoctorFinding("python", WARN, f"{words}: tested with CPython only", "use CPython")
    return DoctorFinding("python", OK, words)


def extras_finding(there: dict[str, bool]) -> DoctorFinding:
    have = ", ".join(name for name, is_there in there.items() if is_there) or "none"
    if not there.get("pipeline", False):
        return DoctorFinding("extras", WARN, f"{have}; tables and reports need `pipeline`", GET_PIPELINE)
    return DoctorFinding("extras", OK, have)


def port_findings(
    found: Sequence[PortReading], configured: frozenset[str], ours: frozenset[int]
) -> Iterator[DoctorFinding]:
    """One finding for all ports that are ok, and one for each port that another program uses.

    `configured`: ports that must be free, as a file names them; otherwise `scale0 up` chooses others. `ours`: ports of
    the broker that answered.
    """
    free, used = [], []
    for port in found:
        if port.free:
            free.append(port.number)
        elif port.number in ours or OUR_PROGRAM.search(port.owner):
            used.append(port.number)
        else:
            whose = f"{port.owner[:30]} (process {port.pid})" if port.pid is not None else "another program"
            other = f"choose another with --{port.name.replace('_', '-')}-port"
            repair = f"end it, or {OTHER_PORTS.get(port.name, other)}"
            look = f"ss -ltnp 'sport = :{port.number}'"
            yield DoctorFinding(
                "ports",
                FAIL if port.name in configured else WARN,
                f"{port.number} ({port.name}) is in use by {whose}",
                f"{repair}; {look}" if port.pid is None else repair,
            )
    words = [f"{ranged(some)} {what}" for some, what in ((free, "free"), (used, "in use by Scale0")) if some]
    if words:
        yield DoctorFinding("ports", OK, "; ".join(words))


def ranged(numbers: Sequence[int]) -> str:
    """Numbers with ranges: 4166, 5700-5704."""
    out: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def key_findings(faults: Sequence[str], has_server_key: bool, curve_wanted: bool) -> Iterator[DoctorFinding]:
    """Secrets and their permissions; `faults` are those of `transport.edge.curve_certificates.private_faults`."""
    for fault in faults:
        found = FAULT.fullmatch(fault)
        what, fix = (found[1], found[2]) if found is not None else (fault, "check its permissions: ls -l")
        yield DoctorFinding("keys", FAIL, what, fix)
    if curve_wanted and not has_server_key:
        yield DoctorFinding("keys", FAIL, "the file sets `curve`, but there is no server key", "scale0 keys init")
    elif not faults:
        words = "only the owner can read the broker's key" if has_server_key else "none here; loopback needs none"
        yield DoctorFinding("keys", OK, words)


def expiry_findings(keys: Iterable[Key], wall: float) -> Iterator[DoctorFinding]:
    """Keys that have expired or expire soon."""
    from scale0.broker.core.key_expiry import expiring, extend_command, left_text

    for key in expiring(keys, wall):
        yield DoctorFinding("keys", WARN, f"the key of {key.user} {left_text(key, wall)}", extend_command(key))


def certificate_finding(whose: str, not_after: float, wall: float) -> DoctorFinding:
    days = (not_after - wall) / DAY_SECONDS
    renew = "scale0 agent renew" if whose == "agent" else "scale0 helen init --help"
    if days <= 0:
        again = "enrol again: scale0 agent enrol HELEN --token -" if whose == "agent" else renew
        return DoctorFinding("certs", FAIL, f"the certificate of {whose} expired {-days:.0f} days ago", again)
    if days < SOON_DAYS:
        return DoctorFinding("certs", WARN, f"the certificate of {whose} expires in {days:.0f} days", renew)
    return DoctorFinding("certs", OK, f"the certificate of {whose} is valid for {days:.0f} days")


def clock_findings(
    before: ClockReading,
    after: ClockReading,
    synchronised: bool | None,
    offset: float | None,
    max_skew: float = 30.0,
    suspect: bool = False,
) -> Iterator[DoctorFinding]:
    """Whether it is even, synchronised, and equal to the broker's. `offset`: ours minus theirs, in seconds;
    the broker refuses clients beyond `max_skew`, unless it suspects its own clock."""
    jump = (after.wall - before.wall) - (after.mono - before.mono)
    repair = "timedatectl set-ntp true"
    if suspect:
        words = "clients disagree with the broker's clock, and none confirms it"
        yield DoctorFinding("clock", WARN, words, f"on the broker's host: {repair}")
    if abs(jump) > JUMP_SECONDS:
        yield DoctorFinding(
            "clock", WARN, f"the wall clock jumped by {jump:+.1f} s during the check", f"{repair}, and check again"
        )
    if offset is not None and abs(offset) > max_skew:
        yield DoctorFinding(
            "clock", FAIL, f"{offset:+.1f} s from the broker's: it refuses clients beyond {max_skew:g} s (425)", repair
        )
    elif offset is not None and abs(offset) > SMALL_SKEW_SECONDS:
        yield DoctorFinding("clock", WARN, f"{offset:+.1f} s from the broker's", repair)
    elif synchronised is False:
        yield DoctorFinding("clock", WARN, "it is not synchronised (NTP)", repair)
    elif abs(jump) <= JUMP_SECONDS:
        state = {True: "synchronised", None: "not known whether it is synchronised"}[synchronised]
        yield DoctorFinding("clock", OK, state + ("" if offset is None else f"; {offset:+.3f} s from the broker's"))


def java_finding(found: JavaReading | None, pipeline: bool) -> DoctorFinding:
    bad = FAIL if pipeline else WARN
    if found is None:
        return DoctorFinding("java", WARN, "none; tables and reports need it", GET_JAVA)
    version = java_version(found.output)
    if version is None:
        return DoctorFinding("java", bad, f"{found.path} does not print its version", GET_JAVA)
    if version < JAVA:
        return DoctorFinding("java", bad, f"{found.path} is Java {version}; Spark needs 17 or newer", GET_JAVA)
    return DoctorFinding("java", OK, f"{found.path} is Java {version}")


def java_version(text: str) -> int | None:
    """The major version: `1.8.0` is 8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def disk_findings(found: DiskReading, min_free_bytes: int) -> Iterator[DoctorFinding]:
    folder, free = found.folder, f"{found.free_bytes / GIB:.1f} GiB free"
    if found.trouble:
        yield DoctorFinding("disk", FAIL, f"{folder} cannot be written: {found.trouble}", f"ls -ld {folder}")
        return
    room = f"free some space: du -xh {folder} | sort -h | tail"
    if found.free_bytes <= min_free_bytes:
        refused = "a broker refuses all writes, unless its database has free pages"
        yield DoctorFinding("disk", FAIL, f"{folder}: {free}; {refused}", room)
    elif found.free_bytes < max(LOW_DISK_BYTES, 2 * min_free_bytes):
        yield DoctorFinding("disk", WARN, f"{folder}: only {free}", room)
    if found.file_system.startswith(NETWORK_KINDS):
        yield DoctorFinding(
            "disk",
            WARN,
            f"{folder} is on {found.file_system}: SQLite needs a local disk",
            "choose another --data-dir",
        )
    seconds = found.sync_seconds or 0.0
    if seconds > SLOW_SYNC_SECONDS:
        state = FAIL if seconds > STUCK_SYNC_SECONDS else WARN
        words = f"{folder}: a synced write takes {seconds * 1_000:.0f} ms (fdatasync)"
        yield DoctorFinding("disk", state, words, "put --data-dir on a faster disk; see: iostat -x 1")
    else:
        kind = f" on {found.file_system}" if found.file_system else ""
        yield DoctorFinding("disk", OK, f"{folder}: {free}{kind}, a synced write takes {seconds * 1_000:.1f} ms")


def files_finding(limit: int | None, max_clients: int) -> DoctorFinding:
    """A broker needs one descriptor for each client."""
    repair = "LimitNOFILE=1048576 in its unit, or as root: ulimit -Hn"
    if limit is None or limit >= max_clients + SPARE_FILES:
        return DoctorFinding("files", OK, f"{'unlimited' if limit is None else f'at most {limit:,}'} open files")
    words = f"at most {limit:,} open files: enough for {max(0, limit - SPARE_FILES):,} clients, not {max_clients:,}"
    return DoctorFinding("files", FAIL if limit < FEW_FILES else WARN, words, repair)


def memory_finding(available: int, total: int, pipeline: bool) -> DoctorFinding:
    words = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if available < TOO_LITTLE_BYTES:
        return DoctorFinding("memory", FAIL, f"{words}: too little for a broker", "ps aux --sort=-rss | head")
    if available < LITTLE_BYTES:
        return DoctorFinding("memory", WARN, words, "ps aux --sort=-rss | head")
    if pipeline and available < 4 * GIB:
        return DoctorFinding("memory", WARN, f"{words}: Spark uses 3 GiB", "scale0 pipeline run --memory 1g")
    return DoctorFinding("memory", OK, words)


def broker_finding(
    join: str, identity: str, named: bool, versions: tuple[str, str] | None, trouble: str
) -> DoctorFinding:
    """The broker at `join`. `named`: the address was given; `versions`: its own and ours, if known."""
    from scale0.transport.core.session import KEYS_MISMATCH

    if trouble:
        named = named or KEYS_MISMATCH in trouble  # a broker is there
        words = f"none answers at {join}" + (f": {trouble}" if named else "")
        return DoctorFinding("broker", FAIL if named else WARN, words, "scale0 up, or give --join HOST[:PORT]")
    if versions is not None and versions[0] != versions[1]:
        theirs, ours = versions
        return DoctorFinding(
            "broker", WARN, f"{identity} has version {theirs}, this is {ours}", f"pip install scale0=={theirs}"
        )
    version = f", version {versions[0]}" if versions is not None else "; its version needs its token (--data-dir)"
    return DoctorFinding("broker", OK, f"{identity} answers at {join}{version}")


def console_finding(has_pages: bool) -> DoctorFinding:
    if has_pages:
        return DoctorFinding("console", OK, "its pages are installed")
    return DoctorFinding("console", WARN, "its pages are not built", "make setup, or pip install a wheel of scale0")
