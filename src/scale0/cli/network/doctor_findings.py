"""What `scale0 doctor` thinks of a machine: readings in, findings out.

Lives here: every judgement, its words, and what to type next. Never here: a reading (`cli.network.host_readings`).
Invariants: `fail` is what keeps a network from working or its secrets from being secret, `warn` what will hurt one day
or is left out; whatever is not ok says what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from scale0.cli.network.host_readings import ClockReading, DiskReading, JavaReading, PortReading, ZmqReading

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

OUR_PROGRAM: Final = re.compile(r"(?:^|[ /])scale0(?:\.[a-z_.]+)?(?: |$)")
"""In a command line: `…/bin/scale0 up`, `python -m scale0 broker`, `python -m scale0.http.child`."""
OTHER_PORTS: Final = {
    "management": "choose another as `management.port` in the broker's file",
    "helen": "choose another as `helen_port` in Helen's file",
}
PYTHON: Final = (3, 11)
LIBZMQ: Final = (4, 3, 0)
JAVA: Final = 17
GET_JAVA: Final = "sudo apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
GET_PIPELINE: Final = "pip install 'scale0[pipeline]'"
DAY_SECONDS: Final = 86_400.0
SOON_DAYS: Final = 14
"""A certificate that ends sooner should have been renewed."""
SKEW_SECONDS: Final = 30.0
"""`max_clock_skew`: who is further from the broker's clock is disconnected (425)."""
SMALL_SKEW_SECONDS: Final = 1.0
JUMP_SECONDS: Final = 0.5
"""By which two clocks may part while we look."""
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
LOW_DISK_BYTES: Final = GIB
SLOW_SYNC_SECONDS: Final = 0.05
STUCK_SYNC_SECONDS: Final = 1.0
"""Every acknowledgement waits for one: a broker on such a disk looks dead."""
NETWORK_KINDS: Final = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "afs", "fuse.sshfs", "fuse.s3")
FEW_FILES: Final = 1_024
SPARE_FILES: Final = 100
"""Of a broker beside its clients: sockets, store, segments."""
LITTLE_BYTES: Final = 256 * MIB
TOO_LITTLE_BYTES: Final = 64 * MIB


class DoctorFinding(NamedTuple):
    """What was looked at, and how it is."""

    probe: str
    state: str
    words: str
    next: str = ""


def python(version: Sequence[int], implementation: str) -> DoctorFinding:
    """The interpreter."""
    words = f"{implementation} {'.'.join(map(str, version[:3]))}"
    if tuple(version[:2]) < PYTHON:
        return DoctorFinding(
            "python", FAIL, f"{words}: 3.11 or later is needed", "install a newer Python: python3 --version"
        )
    if implementation != "CPython":
        return DoctorFinding("python", WARN, f"{words}: tested with CPython only", "use CPython")
    return DoctorFinding("python", OK, words)


def extras(there: dict[str, bool]) -> DoctorFinding:
    """What was installed beside the base."""
    have = ", ".join(name for name, is_there in there.items() if is_there) or "none"
    if not there.get("pipeline", False):
        return DoctorFinding(
            "extras", WARN, f"{have}; without `pipeline` there are no tables and no reports", GET_PIPELINE
        )
    return DoctorFinding("extras", OK, have)


def messaging(found: ZmqReading, curve_wanted: bool) -> DoctorFinding:
    """ZeroMQ, and whether it can encrypt."""
    words = f"libzmq {'.'.join(map(str, found.libzmq))}, pyzmq {found.pyzmq}"
    mend = "pip install --force-reinstall --only-binary :all: pyzmq"
    if not found.curve:
        return DoctorFinding("zmq", FAIL if curve_wanted else WARN, f"{words}: it cannot do CURVE", mend)
    if found.libzmq < LIBZMQ:
        return DoctorFinding("zmq", WARN, f"{words}: older than 4.3", mend)
    return DoctorFinding("zmq", OK, f"{words}, CURVE is there")


def ports(found: Sequence[PortReading], configured: frozenset[str], ours: frozenset[int]) -> Iterator[DoctorFinding]:
    """One finding for all that are well, and one for each that another program has.

    `configured`: those that a file names, so that they must be free; for others `scale0 up` finds another. `ours`:
    those at which the broker that answered says that it listens.
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
            mend = f"end it, or {OTHER_PORTS.get(port.name, other)}"
            look = f"ss -ltnp 'sport = :{port.number}'"
            yield DoctorFinding(
                "ports",
                FAIL if port.name in configured else WARN,
                f"{port.number} ({port.name}) is taken by {whose}",
                f"{mend}; {look}" if port.pid is None else mend,
            )
    words = [f"{ranged(some)} {what}" for some, what in ((free, "free"), (used, "in use by Scale0")) if some]
    if words:
        yield DoctorFinding("ports", OK, "; ".join(words))


def ranged(numbers: Sequence[int]) -> str:
    """Numbers with those in a row as one: 4166, 5700-5704."""
    out: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def keys(faults: Sequence[str], has_server_key: bool, curve_wanted: bool) -> Iterator[DoctorFinding]:
    """Secrets, and who may read them; `faults` as `transport.edge.curve_certificates.private_faults` has them."""
    for fault in faults:
        what, _, mend = fault.rpartition(": chmod ")
        yield DoctorFinding("keys", FAIL, what or fault, f"chmod {mend}" if what else "look at its permissions: ls -l")
    if curve_wanted and not has_server_key:
        yield DoctorFinding("keys", FAIL, "the file says `curve`, and there is no server key", "scale0 keys init")
    elif not faults:
        words = "the broker's key is for its owner alone" if has_server_key else "none here: on loopback none is needed"
        yield DoctorFinding("keys", OK, words)


def certificate(whose: str, not_after: float, wall: float) -> DoctorFinding:
    """Until when Helen or an agent is believed."""
    days = (not_after - wall) / DAY_SECONDS
    renew = "scale0 agent renew" if whose == "agent" else "scale0 helen init --help"
    if days <= 0:
        again = "enrol again: scale0 agent enrol HELEN --token TOKEN" if whose == "agent" else renew
        return DoctorFinding("certs", FAIL, f"the certificate of {whose} has ended {-days:.0f} days ago", again)
    if days < SOON_DAYS:
        return DoctorFinding("certs", WARN, f"the certificate of {whose} ends in {days:.0f} days", renew)
    return DoctorFinding("certs", OK, f"the certificate of {whose} holds for {days:.0f} days")


def clock(
    before: ClockReading, after: ClockReading, synchronised: bool | None, offset: float | None
) -> Iterator[DoctorFinding]:
    """Does it go evenly, does anybody set it, and is it the broker's? `offset`: ours less theirs, in seconds."""
    jump = (after.wall - before.wall) - (after.mono - before.mono)
    mend = "timedatectl set-ntp true"
    if abs(jump) > JUMP_SECONDS:
        yield DoctorFinding(
            "clock", WARN, f"the wall clock jumped by {jump:+.1f} s while we looked", f"{mend}, and look again"
        )
    if offset is not None and abs(offset) > SKEW_SECONDS:
        yield DoctorFinding(
            "clock", FAIL, f"{offset:+.1f} s from the broker's: it lets nobody in beyond 30 s (425)", mend
        )
    elif offset is not None and abs(offset) > SMALL_SKEW_SECONDS:
        yield DoctorFinding("clock", WARN, f"{offset:+.1f} s from the broker's", mend)
    elif synchronised is False:
        yield DoctorFinding("clock", WARN, "nobody keeps it right: it is not synchronised (NTP)", mend)
    elif abs(jump) <= JUMP_SECONDS:
        kept = {True: "synchronised", None: "whether it is synchronised is not known"}[synchronised]
        yield DoctorFinding("clock", OK, kept + ("" if offset is None else f"; {offset:+.3f} s from the broker's"))


def java(found: JavaReading | None, pipeline: bool) -> DoctorFinding:
    """What Spark needs."""
    bad = FAIL if pipeline else WARN
    if found is None:
        return DoctorFinding("java", WARN, "none: without it there are no tables and no reports", GET_JAVA)
    version = java_version(found.said)
    if version is None:
        return DoctorFinding("java", bad, f"{found.path} does not say what it is", GET_JAVA)
    if version < JAVA:
        return DoctorFinding("java", bad, f"{found.path} is Java {version}, and Spark needs 17 or newer", GET_JAVA)
    return DoctorFinding("java", OK, f"{found.path} is Java {version}")


def java_version(said: str) -> int | None:
    """The number that people call it by: `1.8.0` is 8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def disk(found: DiskReading, min_free_bytes: int) -> Iterator[DoctorFinding]:
    """Room, speed and kind of where the data is."""
    place, free = found.folder, f"{found.free_bytes / GIB:.1f} GiB free"
    if found.trouble:
        yield DoctorFinding("disk", FAIL, f"nothing can be written to {place}: {found.trouble}", f"ls -ld {place}")
        return
    room = f"make room: du -xh {place} | sort -h | tail"
    if found.free_bytes <= min_free_bytes:
        yield DoctorFinding("disk", FAIL, f"{place}: {free}, so a broker refuses all writes", room)
    elif found.free_bytes < max(LOW_DISK_BYTES, 2 * min_free_bytes):
        yield DoctorFinding("disk", WARN, f"{place}: only {free}", room)
    if found.file_system.startswith(NETWORK_KINDS):
        yield DoctorFinding(
            "disk",
            WARN,
            f"{place} is on {found.file_system}: SQLite needs a disk of this machine",
            "choose another --data-dir",
        )
    seconds = found.sync_seconds or 0.0
    if seconds > SLOW_SYNC_SECONDS:
        state = FAIL if seconds > STUCK_SYNC_SECONDS else WARN
        words = f"{place}: a write takes {seconds * 1_000:.0f} ms to be on the disk (fdatasync)"
        yield DoctorFinding("disk", state, words, "put --data-dir on a quicker disk; see: iostat -x 1")
    else:
        kind = f" on {found.file_system}" if found.file_system else ""
        yield DoctorFinding("disk", OK, f"{place}: {free}{kind}, a synced write takes {seconds * 1_000:.1f} ms")


def files(limit: int | None, max_clients: int) -> DoctorFinding:
    """Descriptors: a broker needs one for each client."""
    mend = "LimitNOFILE=1048576 in its unit, or as root: ulimit -Hn"
    if limit is None or limit >= max_clients + SPARE_FILES:
        return DoctorFinding("files", OK, f"{'any number' if limit is None else f'{limit:,}'} may be open")
    words = f"{limit:,} may be open: {max(0, limit - SPARE_FILES):,} clients, not {max_clients:,}"
    return DoctorFinding("files", FAIL if limit < FEW_FILES else WARN, words, mend)


def memory(available: int, total: int, pipeline: bool) -> DoctorFinding:
    """Room for a broker, and for Spark."""
    words = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if available < TOO_LITTLE_BYTES:
        return DoctorFinding("memory", FAIL, f"{words}: a broker does not start in that", "ps aux --sort=-rss | head")
    if available < LITTLE_BYTES:
        return DoctorFinding("memory", WARN, words, "ps aux --sort=-rss | head")
    if pipeline and available < 4 * GIB:
        return DoctorFinding("memory", WARN, f"{words}: Spark takes 3 of them", "scale0 pipeline run --memory 1g")
    return DoctorFinding("memory", OK, words)


def broker(join: str, said: str, named: bool, versions: tuple[str, str] | None, trouble: str) -> DoctorFinding:
    """The one at `join`. `named`: somebody said where it is; `versions`: its own and ours, if it told."""
    if trouble:
        words = f"none answers at {join}" + (f": {trouble}" if named else "")
        return DoctorFinding("broker", FAIL if named else WARN, words, "scale0 up, or give --join HOST[:PORT]")
    if versions is not None and versions[0] != versions[1]:
        theirs, ours = versions
        return DoctorFinding(
            "broker", WARN, f"{said} is version {theirs}, and this is {ours}", f"pip install scale0=={theirs}"
        )
    told = f", version {versions[0]}" if versions is not None else "; its token (--data-dir) would tell its version"
    return DoctorFinding("broker", OK, f"{said} answers at {join}{told}")


def console(has_pages: bool) -> DoctorFinding:
    """The web console's built pages."""
    if has_pages:
        return DoctorFinding("console", OK, "its pages are here")
    return DoctorFinding(
        "console", WARN, "its pages were not built here", "make setup, or pip install a wheel of scale0"
    )
