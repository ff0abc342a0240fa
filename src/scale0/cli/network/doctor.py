"""`scale0 doctor`: is this machine fit for a network, and what to do where it is not?

Lives here: the command, and which readings go to which probe. Never here: a judgement (`doctor_probes`), or how a
reading is taken (`cli.network.host_readings`). Invariant: nothing of it fails because something is wrong: that is what
it tells.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option

if TYPE_CHECKING:
    from scale0.cli.network.doctor_findings import DoctorFinding
    from scale0.config import BrokerConfig

EXTRAS: Final = {
    "pipeline": ("pyspark", "pandas", "duckdb", "numpy"),
    "postgres": ("psycopg",),
    "otlp": ("opentelemetry.sdk",),
}
"""What each extra of the package brings."""
HELEN_PORT: Final = 4166
CONSOLE_PORT: Final = 5780
LOOK_SECONDS: Final = 2.0
"""How long a broker may take to answer."""
COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH: Final = 80
NAME_WIDTH: Final = 9


class ReachedBroker(NamedTuple):
    """What the broker at --join said."""

    identity: str = ""
    trouble: str = ""
    offset: float | None = None
    """Our clock less its own, in seconds."""
    version: str | None = None
    ports: frozenset[int] = frozenset()


@click.command()
@joins
@click.option("--data-dir", envvar=DATA_DIR, help=f"The folder of the broker, or of one to come ({LOCAL_FOLDER}).")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="The broker's file: its ports, and more."
)
@json_option
@click.pass_context
def doctor(context: click.Context, join: str, data_dir: str | None, config_file: Path | None, wants_json: bool) -> None:
    """Look at this machine: is everything there that a network needs, and what is to be done?

    It looks at Python and the extras, ZeroMQ, ports, keys and certificates, the clock, Java, the disk, limits, memory,
    the console's pages, and the broker at --join. It changes nothing. Exits with 1 if something failed; a warning is
    no failure.

    \b
    With --json, an array of objects:
      probe   python, extras, zmq, ports, keys, certs, clock, java, disk, files,
              memory, console or broker; one may be there more than once
      state   ok, warn or fail
      words   what was found
      next    what to type; blank if it is ok

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
    """Every finding, in the order in which one would mend it."""
    from scale0 import __version__
    from scale0.cli.network import doctor_findings as probes
    from scale0.cli.network import host_readings
    from scale0.http.console_pages import FOLDER

    before = host_readings.read_clock()
    there = {name: host_readings.installed(modules) for name, modules in EXTRAS.items()}
    pipeline = there["pipeline"]
    heard = hear(join, folder)
    yield probes.python(tuple(sys.version_info[:3]), platform.python_implementation())
    yield probes.extras(there)
    yield probes.messaging(host_readings.read_zmq(), config.curve)
    yield from probes.ports(
        host_readings.read_ports(ports_of(config), config.bind), named_in(config, configured), heard.ports
    )
    yield from secrets(folder, config.curve, before.wall)
    yield probes.java(host_readings.read_java(os.environ), pipeline)
    yield from probes.disk(host_readings.read_disk(folder), config.min_free_bytes or 0)
    yield probes.files(host_readings.max_files(), config.max_clients)
    yield probes.memory(*host_readings.memory(), pipeline)
    yield probes.console((FOLDER / "index.html").is_file())
    yield from probes.clock(before, host_readings.read_clock(), host_readings.is_synchronised(), heard.offset)
    versions = None if heard.version is None else (heard.version, __version__)
    yield probes.broker(join.removeprefix("tcp://"), heard.identity, named, versions, heard.trouble)


def ports_of(config: BrokerConfig) -> dict[str, int]:
    """Those that a broker and a Helen on this machine would listen on."""
    from scale0.cli.broker.command import PORTS

    own = {name: getattr(config, f"{name}_port") for name in PORTS}
    return {**own, "management": config.management.port or CONSOLE_PORT, "helen": HELEN_PORT}


def named_in(config: BrokerConfig, configured: bool) -> frozenset[str]:
    """The ports that this broker will not do without."""
    from scale0.cli.broker.command import PORTS

    served = ("management",) if config.management.enabled else ()
    return frozenset({*PORTS, *served} if configured else ())


def secrets(folder: Path, curve: bool, wall: float) -> Iterator[DoctorFinding]:
    """Keys, tokens and certificates of the broker, of Helen and of the agent of a folder, and of this user."""
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.cli.network import doctor_findings as probes
    from scale0.kernel.edge.secret_files import TOKEN_FILE
    from scale0.kernel.errors import ConfigError
    from scale0.monitoring.agent.edge.certificate import read_certificate
    from scale0.transport.edge.client_keys import config_folder
    from scale0.transport.edge.curve_certificates import private_faults

    own = KeyFolder(folder)
    helen, agent = folder / "monitoring" / "helen", folder / "monitoring" / "agent"
    private = [folder / TOKEN_FILE, *folder.glob("*-key.pem"), *helen.glob("*-key.pem"), *agent.glob("*-key.pem")]
    private += config_folder(dict(os.environ)).glob("*_secret")
    wrong = own.check() + [fault for path in private for fault in private_faults(path)]
    yield from probes.keys(wrong, own.server_file.exists(), curve)
    for whose, home in (("helen", helen), ("agent", agent), ("helen", folder), ("agent", folder)):
        with contextlib.suppress(ConfigError):  # it is not there, or no certificate: whoever needs it says so
            yield probes.certificate(whose, read_certificate(home / f"{whose}.pem").not_after, wall)


def hear(join: str, folder: Path) -> ReachedBroker:
    """Ask the broker who it is, what time it has, and with its token all else."""
    from scale0.cli.common.connection import connect
    from scale0.cli.network.host_readings import read_clock
    from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret
    from scale0.kernel.errors import Scale0Error

    try:
        with connect(join, LOOK_SECONDS, LOOK_SECONDS) as client:
            asked = read_clock()
            said = client.ping()
            answered = read_clock()
            offset = (asked.wall + answered.wall) / 2 - said["time"]
            told: dict[str, Any] = {}
            token = read_secret(folder / TOKEN_FILE)
            if token is not None:
                with contextlib.suppress(Scale0Error):  # it may be another broker's
                    told = client.manage("status", auth_token=token)
    except (Scale0Error, OSError) as error:
        return ReachedBroker(trouble=getattr(error, "message", str(error)))
    places = (place.rpartition(":")[2] for place in told.get("endpoints", {}).values() if place)
    ours = frozenset(int(number) for number in places if number.isdigit())
    return ReachedBroker(said["broker"], "", offset, told.get("version"), ours)


def show(one: DoctorFinding) -> None:
    """Its line, and under it what to type."""
    for line in lines_of(one):
        head, _, rest = line.partition(" ")
        output.say(f"{output.painted(head, COLOURS[head])} {rest}" if head in COLOURS else line)


def lines_of(one: DoctorFinding) -> list[str]:
    """At most 80 columns each: what is too long goes on below, so that nothing of it is lost."""
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
    """All of it in one line."""
    failed, warned = (sum(one.state == state for one in found) for state in ("fail", "warn"))
    if failed:
        return f"{failed} failed, {warned} warned: mend what failed first."
    return f"Nothing failed, {warned} warned." if warned else "All is well."
