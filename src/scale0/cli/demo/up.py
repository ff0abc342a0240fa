"""`scale0 up`: a network on this machine, by one command.

All that it starts listens on loopback only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.broker.command import PORTS, changed
from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.endpoints import (
    BACKEND_PORT,
    CONSOLE_PORT,
    DEFAULT_HOST,
    FRONTEND_PORT,
    JOIN,
    JOIN_BACKEND,
    default_identity,
    is_free,
)
from scale0.cli.common.options import log_format_option
from scale0.cli.demo.up_monitoring import BLOCK, TRIES, UpMonitoring
from scale0.kernel.edge.secret_files import TOKEN_FILE
from scale0.kernel.errors import StoreError

if TYPE_CHECKING:
    from scale0.broker.core.broker import Broker
    from scale0.broker.main.http_settings import HttpReady

NEXT: Final = (
    ("scale0 call", "list the services, and how to offer one"),
    ("scale0 worker hello.py:worker", "offer the functions of a file"),
    ("scale0 call hello world", "call one"),
    ("scale0 task submit hello world", "the same as a durable task"),
    ("scale0 checks", "the state of this machine"),
    ("scale0 status", "problems, and what to do about them"),
    ("scale0 top", "everything, live"),
    ("scale0 pipeline run", "compute tables (needs Java)"),
    ("scale0 report all", "show reports of these tables"),
)
"""Commands to try when a network is up."""
NEED_HELEN: Final = ("scale0 checks",)


@click.command()
@click.option("--data-dir", default=LOCAL_FOLDER, show_default=True, envvar=DATA_DIR, help="The folder for its data.")
@click.option("--identity", help="The broker's name (default: the host name).")
@click.option(
    "--port", type=click.IntRange(1, 65_000), help=f"The first of five ports ({FRONTEND_PORT}, or free ones)."
)
@click.option("--bare", is_flag=True, help="Only the broker: no console, no monitoring of this machine.")
@click.option("--insecure", is_flag=True, help="Without keys: every user of this machine can connect.")
@click.option("--verbose", is_flag=True, help="Log at level INFO to stderr.")
@log_format_option
def up(data_dir: str, identity: str | None, port: int | None, bare: bool, insecure: bool, verbose: bool) -> None:
    """Start a network on this machine.

    It has a broker with its console, a Helen and an agent. All of them listen on loopback only, and accept programs of
    this user only, which find their keys by themselves. Ctrl-C ends them. The command prints a link to the console that
    works once; `scale0 access link` makes another one.

    The data (configuration, tokens, history) is in .scale0/ and is used again at the next start. Helen and the agent
    are separate processes; their files and logs are in .scale0/monitoring/.

    \b
    Examples:
      scale0 up
      scale0 up --bare --port 6700
    """
    from scale0.broker.main.process import run_broker
    from scale0.config import BrokerConfig
    from scale0.kernel.edge.log_setup import LEVEL_VARIABLE, log_to_stderr
    from scale0.transport.edge.client_keys import KEY, NO_KEYS

    # For the processes that it starts, whatever keys the user has.
    os.environ[DATA_DIR] = os.path.abspath(data_dir)
    os.environ.pop(KEY, None)
    if insecure:
        os.environ[KEY] = NO_KEYS
    os.environ[LEVEL_VARIABLE] = "INFO" if verbose else "WARNING"  # also for the console's process
    log_to_stderr(identity or default_identity())
    first = first_port(port)
    make_private(Path(data_dir))
    changes = {
        "identity": identity or default_identity(),
        "data_dir": data_dir,
        "bind": DEFAULT_HOST,
        "state": "active",
        "curve": not insecure,
        "config_service": True,
        "management": {"enabled": not bare, "port": console_port(another=port is None and first != FRONTEND_PORT)},
        **{f"{name}_port": first + i for i, name in enumerate(PORTS)},
    }
    started: list[UpMonitoring] = []

    def ready(broker: Broker) -> None:
        if first != FRONTEND_PORT and port is None:
            output.note(f"a port from {FRONTEND_PORT} to {FRONTEND_PORT + 4} is in use: using {first} to {first + 4}")
        welcome(broker, data_dir, not bare)
        if not bare:
            started.append(start_monitoring(broker, Path(data_dir)))

    try:
        status = run_broker(changed(BrokerConfig(), changes), None, ready, say_console)
    except StoreError as error:
        raise errors.CommandError(str(error), next_after(str(error), data_dir)) from error
    finally:
        for monitoring in started:
            monitoring.stop()
    output.say("stopped")
    sys.exit(status)


def next_after(what: str, data_dir: str) -> str:
    """The next step when the data folder cannot be used."""
    if "in use by process" in what:
        return "it already runs: see `scale0 status`, or start another network with --data-dir FOLDER"
    if "this program supports" in what:
        return "pip install --upgrade scale0, or use another folder with --data-dir FOLDER; nothing was changed"
    if "belongs to another program" in what:
        return "use another folder with --data-dir FOLDER; nothing was changed"
    return f"use another folder with --data-dir FOLDER; `scale0 doctor --data-dir {data_dir}` shows details"


def start_monitoring(broker: Broker, data_dir: Path) -> UpMonitoring:
    """Start a Helen and an agent, and print when they are ready or what went wrong."""
    folder = (data_dir / "monitoring").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = broker.state
    monitoring = UpMonitoring(folder, state.identity, dict(state.endpoints), data_dir / TOKEN_FILE)
    monitoring.start(
        lambda address: output.say(f"\nHelen monitors this machine, on {address}:\n\n    scale0 checks\n"),
        lambda what: output.note(f"{output.clean(what.rstrip())}\n  next: read the logs in {folder}"),
    )
    return monitoring


def console_port(another: bool) -> int:
    """The default port, or any if it is in use or will be: `another` network runs here or is just starting."""
    return CONSOLE_PORT if not another and is_free(CONSOLE_PORT) else 0


def say_console(now: HttpReady) -> None:
    """The console's address, and on the first start a link that works once within ten minutes."""
    output.say(f"\nThe console is at {now.url}" + (", and this link opens it, once:" if now.link else "."))
    if now.link:
        output.say(f"\n    {now.link}\n")


def first_port(wanted: int | None) -> int:
    """The first of five free ports; the default ones if they are free."""
    if wanted is not None:
        if not all(is_free(wanted + i) for i in range(len(PORTS))):
            raise errors.CommandError(
                f"a port from {wanted} to {wanted + 4} is in use", "choose another --port, or leave it out"
            )
        return wanted
    for first in range(FRONTEND_PORT, FRONTEND_PORT + BLOCK * TRIES, BLOCK):
        if all(is_free(first + i) for i in range(len(PORTS))):
            return first
    raise errors.CommandError("no five consecutive free ports were found", "choose the first one with --port")


def make_private(folder: Path) -> None:
    """Make a folder that only this user can read and version control ignores: it contains a token."""
    with contextlib.suppress(OSError):  # the store reports problems with a folder better
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            (folder / ".gitignore").touch(mode=0o600)
            (folder / ".gitignore").write_text("*\n")


def welcome(broker: Broker, data_dir: str, with_helen: bool) -> None:
    endpoints = broker.state.endpoints
    output.say(f"ready: broker {broker.state.identity}, its data in {os.path.abspath(data_dir)}\n")
    output.facts([("  clients (frontends)", endpoints["frontend"]), ("  workers (backends)", endpoints["backend"])])
    frontend, backend = (int(endpoints[name].rpartition(":")[2]) for name in ("frontend", "backend"))
    output.say("\nIn another shell:\n")
    if (frontend, backend) != (FRONTEND_PORT, BACKEND_PORT):
        output.say(f"    export {JOIN}={DEFAULT_HOST}:{frontend} {JOIN_BACKEND}={DEFAULT_HOST}:{backend}")
    for words, what in NEXT:
        if with_helen or words not in NEED_HELEN:
            output.say(f"    {words:<32}# {what}")
    output.say("\nCtrl-C ends it.")
