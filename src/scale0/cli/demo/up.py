"""`scale0 up`: a network on this machine, in one word.

Lives here: free ports, a folder, and what to type next. Never here: another way to run a broker. Invariant: whatever
`up` starts listens on loopback only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.broker.command import PORTS, default_identity
from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER
from scale0.cli.common.endpoints import BACKEND_PORT, DEFAULT_HOST, FRONTEND_PORT, JOIN, JOIN_BACKEND
from scale0.cli.common.log_format import log_format
from scale0.cli.demo.up_monitoring import UpMonitoring

if TYPE_CHECKING:
    from scale0.broker.core.broker import Broker
    from scale0.broker.main.http_settings import HttpReady

CONSOLE_PORT: Final = 5780
BLOCK: Final = 10
"""From one try for free ports to the next."""
TRIES: Final = 100

NEXT: Final = (
    ("scale0 call", "what is there, and how to offer something"),
    ("scale0 worker hello.py:worker", "offer the functions of a file"),
    ("scale0 call hello world", "have one done"),
    ("scale0 task submit hello world", "the same, whoever dies meanwhile"),
    ("scale0 checks", "how this machine is"),
    ("scale0 status", "what is wrong, and what to type then"),
    ("scale0 top", "all of it, live"),
    ("scale0 pipeline run", "make tables of what happened (needs Java)"),
    ("scale0 report all", "and say what it was"),
)
"""What to type when a network is up."""
WATCHED: Final = ("scale0 checks",)
"""Those that need a Helen."""


@click.command()
@click.option("--data-dir", default=LOCAL_FOLDER, show_default=True, envvar=DATA_DIR, help="Where it keeps its store.")
@click.option("--identity", help="The broker's name (default: the host's name).")
@click.option("--port", type=click.IntRange(1, 65_000), help=f"The first of five ports ({FRONTEND_PORT}, or free).")
@click.option("--bare", is_flag=True, help="The broker alone: no console, and nothing watches this machine.")
@click.option("--verbose", is_flag=True, help="Log to stderr what happens.")
@log_format
def up(data_dir: str, identity: str | None, port: int | None, bare: bool, verbose: bool) -> None:
    """Start a network on this machine, on loopback: a broker with its console, and a Helen and an agent that watch it.

    Ctrl-C ends it. It prints a link to the console that works once; `scale0 access link` makes another.

    What it keeps in .scale0/ (configuration, tokens, history) is there again when you start it again. Helen and the
    agent are processes of their own, with their files and logs in .scale0/monitoring/.

    \b
    Examples:
      scale0 up
      scale0 up --bare --port 6700
    """
    from scale0.broker.main.process import run_broker
    from scale0.cli.broker.command import changed
    from scale0.config import BrokerConfig
    from scale0.kernel.edge.log_setup import LEVEL_VARIABLE, log_to_stderr
    from scale0.kernel.errors import StoreError

    os.environ[LEVEL_VARIABLE] = "INFO" if verbose else "WARNING"  # also of the console's process
    log_to_stderr(identity or default_identity())
    first = first_port(port)
    make_private(Path(data_dir))
    changes = {
        "identity": identity or default_identity(),
        "data_dir": data_dir,
        "bind": DEFAULT_HOST,
        "state": "active",
        "config_service": True,
        "management": {"enabled": not bare, "port": console_port(another=port is None and first != FRONTEND_PORT)},
        **{f"{name}_port": first + i for i, name in enumerate(PORTS)},
    }
    watching: list[UpMonitoring] = []

    def ready(broker: Broker) -> None:
        if first != FRONTEND_PORT and port is None:
            output.note(f"port {FRONTEND_PORT} or one of the next four is taken: using {first} to {first + 4}")
        welcome(broker, data_dir, not bare)
        if not bare:
            watching.append(watch(broker, Path(data_dir)))

    try:
        status = run_broker(changed(BrokerConfig(), changes), None, ready, say_console)
    except StoreError as error:
        raise errors.CommandError(str(error), next_after(str(error), data_dir)) from error
    finally:
        for each in watching:
            each.stop()
    output.say("stopped")
    sys.exit(status)


def next_after(what: str, data_dir: str) -> str:
    """What to type when the data folder cannot be used."""
    if "in use by process" in what:
        return "it runs already: look at it with `scale0 status`, or start another with --data-dir FOLDER"
    if "this program knows" in what:
        return "pip install --upgrade scale0, or start anew with --data-dir FOLDER; nothing was changed"
    if "belongs to another program" in what:
        return "choose another with --data-dir FOLDER; nothing was changed"
    return f"choose another with --data-dir FOLDER; `scale0 doctor --data-dir {data_dir}` says more"


def watch(broker: Broker, data_dir: Path) -> UpMonitoring:
    """Have this machine watched; what becomes of it is told when it is known."""
    from scale0.kernel.edge.secret_files import TOKEN_FILE

    folder = (data_dir / "monitoring").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = broker.state
    monitoring = UpMonitoring(folder, state.identity, dict(state.endpoints), data_dir / TOKEN_FILE)
    monitoring.start(
        lambda place: output.say(f"\nHelen watches this machine, on {place}:\n\n    scale0 checks\n"),
        lambda what: output.note(f"{output.clean(what.rstrip())}\n  next: look at the logs in {folder}"),
    )
    return monitoring


def console_port(another: bool) -> int:
    """The usual one, or any if that is taken, or will be: `another` network runs here, or is just being started."""
    return CONSOLE_PORT if not another and is_free(CONSOLE_PORT) else 0


def say_console(now: HttpReady) -> None:
    """Where to look at all this; the link works once, and for ten minutes."""
    output.say(f"\nThe console is at {now.url}" + (", and this opens it, once:" if now.link else "."))
    if now.link:
        output.say(f"\n    {now.link}\n")


def first_port(wanted: int | None) -> int:
    """The first of five free ports; the default ones if they are free."""
    if wanted is not None:
        if not all(is_free(wanted + i) for i in range(len(PORTS))):
            raise errors.CommandError(f"a port of {wanted} to {wanted + 4} is taken", "choose another --port, or none")
        return wanted
    for first in range(FRONTEND_PORT, FRONTEND_PORT + BLOCK * TRIES, BLOCK):
        if all(is_free(first + i) for i in range(len(PORTS))):
            return first
    raise errors.CommandError("no five free ports were found", "choose the first with --port")


def is_free(port: int) -> bool:
    """True if nobody listens there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((DEFAULT_HOST, port))
        except OSError:
            return False
    return True


def make_private(folder: Path) -> None:
    """A folder for us alone, which version control leaves out: a token lies there."""
    with contextlib.suppress(OSError):  # the store says better what is wrong with a folder
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            (folder / ".gitignore").touch(mode=0o600)
            (folder / ".gitignore").write_text("*\n")


def welcome(broker: Broker, data_dir: str, watched: bool) -> None:
    """Where it is, and what to type next."""
    places = broker.state.endpoints
    output.say(f"ready: broker {broker.state.identity}, its data in {os.path.abspath(data_dir)}\n")
    output.facts([("  callers (frontends)", places["frontend"]), ("  workers (backends)", places["backend"])])
    frontend, backend = (int(places[name].rpartition(":")[2]) for name in ("frontend", "backend"))
    output.say("\nIn another shell:\n")
    if (frontend, backend) != (FRONTEND_PORT, BACKEND_PORT):
        output.say(f"    export {JOIN}={DEFAULT_HOST}:{frontend} {JOIN_BACKEND}={DEFAULT_HOST}:{backend}")
    for words, what in NEXT:
        if watched or words not in WATCHED:
            output.say(f"    {words:<32}# {what}")
    output.say("\nCtrl-C ends it.")
