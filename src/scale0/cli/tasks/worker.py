"""`scale0 worker`: offer the functions of a file or module.

Lives here: finding the worker that somebody wrote, and running it. Never here: how it runs.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.endpoints import BACKEND_PORT, JOIN, JOIN_BACKEND, backend_endpoints, keyed
from scale0.cli.common.joining import default_name, token_option
from scale0.cli.common.joining import join as joined
from scale0.cli.common.log_format import log_format

if TYPE_CHECKING:
    from scale0.client.worker import Worker

PATIENCE_SECONDS: Final = 3.0
"""After this long without a broker we say so, and go on trying."""
USUAL_NAME: Final = "worker"
NAME: Final = "worker"
"""What it is called in its log until the broker has taken it in."""
MAX_PREFETCH: Final = 10_000
"""As `client.worker` has it: to import that only for a number would make `--help` slow."""


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--join",
    "joins",
    multiple=True,
    metavar="HOST[:PORT]",
    help=f"A broker, port {BACKEND_PORT} unless named ({JOIN_BACKEND}, {JOIN}); may be repeated, the first preferred.",
)
@click.option("--endpoint", "endpoints", multiple=True, metavar="tcp://HOST:PORT", help="The same, written out.")
@click.option(
    "--prefetch",
    type=click.IntRange(0, MAX_PREFETCH),
    metavar="N",
    help="Tasks that may wait here beside those that run, in place of what the file says; 0: none.",
)
@log_format
@keyed
@token_option
@click.option("--name", help="With --token: what to be called (the host's name).")
def worker(
    target: str,
    joins: tuple[str, ...],
    endpoints: tuple[str, ...],
    prefetch: int | None,
    token_text: str | None,
    name: str | None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; then it finishes what it has in hand.

    MODULE:WORKER names a scale0.Worker: a module that can be imported from here, or a file. :WORKER may be left out if
    it is called `worker`. It prints one line that starts with `ready` when the broker has taken it in. Where it
    connects to: --join or --endpoint, else the environment, else what the file itself says.

    \b
    Examples:
      scale0 worker hello.py:worker
      scale0 worker shop.thumbs:worker --join broker.example.com
      scale0 worker shop.thumbs:worker --join broker.example.com --join 10.0.0.2
      scale0 worker hello.py --join 10.0.0.1 --token TOKEN
    """
    if joins and endpoints:
        raise click.UsageError("--join and --endpoint say the same: give one of them")
    log_as(NAME)
    found = find_worker(target)
    log_as(found.identity or NAME)
    if not found.handlers:
        raise errors.CommandError(
            f"{target} offers nothing", 'offer a function with @worker.service("name")', errors.USAGE
        )
    try:
        places = list(endpoints) or backend_endpoints([join for join in joins if join], os.environ)
    except ValueError as error:
        raise click.UsageError(f"--join: {error}") from error
    for place in places:
        if "://" not in place:
            raise click.UsageError(f"--endpoint looks like tcp://127.0.0.1:{BACKEND_PORT}, not {place}")
    found.endpoints = places or found.endpoints
    if token_text:
        joined(found.endpoints[0], "backend", token_text, name or default_name())
    if prefetch is not None:
        found.prefetch = prefetch
    run(found)


def log_as(who: str) -> None:
    """Log under this name, and have the processes that handlers run in do so, too."""
    from scale0.kernel.edge.log_setup import WHO_VARIABLE, log_to_stderr

    os.environ[WHO_VARIABLE] = who
    log_to_stderr(who)


def run(found: Worker) -> None:
    """Until it is told to stop, or let go."""
    threading.excepthook = end_loudly
    threading.Thread(target=announce, args=(found,), daemon=True).start()
    found.run()
    if found.error:
        raise errors.CommandError(
            f"the network let {found.identity or 'this worker'} go: {found.error}",
            "`scale0 clients` shows who has that identity",
        )


def end_loudly(failed: threading.ExceptHookArgs) -> None:
    """A thread of ours that fails leaves a worker that only looks alive: end it, and let somebody start it again."""
    threading.__excepthook__(failed)
    if failed.thread is not None and failed.thread.name.startswith("scale0-"):
        output.note("scale0: the worker failed by a fault of Scale0 itself; please report the lines above")
        os._exit(errors.NO)


def announce(found: Worker) -> None:
    """One line when the broker has taken us in, and one if that takes long; systemd is told, too."""
    from scale0.kernel.edge.systemd import tell_ready

    if not found.wait_until_up(PATIENCE_SECONDS):
        output.note(f"no broker answers at {found.endpoints[0]} yet: trying until one does")
        found.wait_until_up()
    log_as(found.identity or NAME)
    output.say(f"ready {found.identity} {' '.join(found.handlers)}")
    tell_ready()


def find_worker(target: str) -> Worker:
    """The worker that `MODULE:WORKER` or `FILE.py:WORKER` names."""
    from scale0.client.worker import Worker

    place, _, name = target.partition(":")
    name = name or USUAL_NAME
    module = imported(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Worker):
        return found
    workers = [key for key, value in vars(module).items() if isinstance(value, Worker)]
    next_step = f"try {place}:{workers[0]}" if workers else "make one with worker = scale0.Worker()"
    what = "is no scale0.Worker" if found is not None else "is not there"
    raise errors.CommandError(f"{target}: {name} {what}", next_step, errors.USAGE)


def imported(place: str) -> ModuleType:
    """A module by name from the current folder, or a file."""
    folder, name = os.getcwd(), place
    if place.endswith(".py"):
        file = Path(place).resolve()
        if not file.is_file():
            raise errors.CommandError(f"{place}: there is no such file", "name a file, or a module", errors.USAGE)
        folder, name = str(file.parent), file.stem
    # By name in either case: a handler in a process of its own is imported there again.
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            step = f"name a module that can be imported from {folder}, or a file that ends in .py"
            raise errors.CommandError(f"there is no module {name}", step, errors.USAGE) from error
        raise errors.CommandError(f"{place}: {error}", "install it, or mend the import", errors.USAGE) from error
    except Exception as error:
        raise errors.CommandError(f"{place}: {described(error)}", "mend it, and start again", errors.USAGE) from error
    if place.endswith(".py") and getattr(module, "__file__", None) != str(Path(place).resolve()):
        raise errors.CommandError(f"{place}: another module is called {name}", "rename the file", errors.USAGE)
    return module


def described(error: Exception) -> str:
    """An error of somebody's file, and where in it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
