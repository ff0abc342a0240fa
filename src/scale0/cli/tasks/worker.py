"""`scale0 worker`: find a worker in a file or module, and run it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.endpoints import BACKEND_PORT, JOIN, JOIN_BACKEND, backend_endpoints, key_options
from scale0.cli.common.joining import check_name, default_name, token_option
from scale0.cli.common.joining import join as joined
from scale0.cli.common.options import log_format_option
from scale0.cli.common.proof import require_proof
from scale0.kernel.edge.systemd import notify_ready

if TYPE_CHECKING:
    from scale0.client.worker import Worker

PATIENCE_SECONDS: Final = 3.0
"""After this time without a broker, print a message and keep trying."""
RETRY_SECONDS: Final = 60.0
"""How long one wait for a broker is, after that."""
DEFAULT_NAME: Final = "worker"
LOG_NAME: Final = "worker"
"""Its name in the log until the broker has accepted it."""
MAX_PREFETCH: Final = 10_000
"""The same as in `client.worker`, which would make `--help` slow to import."""


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--join",
    "joins",
    multiple=True,
    metavar="HOST[:PORT]",
    help=f"A broker, default port {BACKEND_PORT} ({JOIN_BACKEND}, {JOIN}); may be repeated, the first one preferred.",
)
@click.option("--endpoint", "endpoints", multiple=True, metavar="tcp://HOST:PORT", help="The same as an endpoint.")
@click.option(
    "--prefetch",
    type=click.IntRange(0, MAX_PREFETCH),
    metavar="N",
    help="Tasks that may wait here in addition to running ones (default: as in the file); 0: none.",
)
@log_format_option
@key_options
@token_option
@click.option("--name", help="With --token: the name of the key (the host name).")
def worker(
    target: str,
    joins: tuple[str, ...],
    endpoints: tuple[str, ...],
    prefetch: int | None,
    token_text: str | None,
    name: str | None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    It then finishes its work in flight. MODULE:WORKER names a scale0.Worker in a module that can be imported from here,
    or in a file. :WORKER may be left out if it is called `worker`. It prints one line that starts with `ready` when the
    broker has accepted it. It connects to --join or --endpoint, else as in the environment, else as in the file itself.

    \b
    Examples:
      scale0 worker hello.py:worker
      scale0 worker shop.thumbs:worker --join broker.example.com
      scale0 worker shop.thumbs:worker --join broker.example.com --join 10.0.0.2
      scale0 worker hello.py --join 10.0.0.1 --token - < token
    """
    if joins and endpoints:
        raise click.UsageError("--join and --endpoint exclude each other: give one of them")
    log_as(LOG_NAME)
    found = find_worker(target)
    log_as(found.identity or LOG_NAME)
    if not found.handlers:
        raise errors.CommandError(
            f"{target} offers no service", 'offer a function with @worker.service("name")', errors.USAGE
        )
    try:
        addresses = list(endpoints) or backend_endpoints([join for join in joins if join], os.environ)
    except ValueError as error:
        raise click.UsageError(f"--join: {error}") from error
    for endpoint in addresses:
        if "://" not in endpoint:
            raise click.UsageError(f"--endpoint must look like tcp://127.0.0.1:{BACKEND_PORT}, not {endpoint}")
    found.endpoints = addresses or found.endpoints
    if token_text:
        joined(found.endpoints[0], "backend", token_text, name, default_name())
    elif name is not None:
        check_name(found.endpoints, name)
    if prefetch is not None:
        found.prefetch = prefetch
    if found.key is None:
        wait_for_proof([endpoint for endpoint in found.endpoints if endpoint.startswith("tcp://")])
    run(found)


def wait_for_proof(endpoints: Sequence[str]) -> None:
    """Raise an error unless a worker may connect to all of these; waits for a broker if none listens there."""
    from scale0.errors import Unreachable

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for endpoint in endpoints:
            patience = PATIENCE_SECONDS
            while True:
                try:
                    require_proof(endpoint, patience)
                    break
                except Unreachable:
                    if len(endpoints) > 1:
                        break  # another one may be there
                    if patience == PATIENCE_SECONDS:
                        output.note(f"no broker answers at {endpoint} yet: retrying until one does")
                    patience = RETRY_SECONDS
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def log_as(who: str) -> None:
    """Log under this name, also in the processes of handlers."""
    from scale0.kernel.edge.log_setup import WHO_VARIABLE, log_to_stderr

    os.environ[WHO_VARIABLE] = who
    log_to_stderr(who)


def run(found: Worker) -> None:
    """Until a signal, or until the broker disconnects it."""
    threading.excepthook = end_loudly
    threading.Thread(target=announce, args=(found,), daemon=True).start()
    found.run()
    if found.error:
        raise errors.CommandError(
            f"the broker disconnected {found.identity or 'this worker'}: {found.error}",
            "`scale0 clients` shows the client with that identity",
        )


def end_loudly(failed: threading.ExceptHookArgs) -> None:
    """End the process if one of our threads fails: otherwise the worker would only look alive."""
    threading.__excepthook__(failed)
    if failed.thread is not None and failed.thread.name.startswith("scale0-"):
        output.note("scale0: internal error in the worker; please report the traceback above")
        os._exit(errors.NO)


def announce(found: Worker) -> None:
    """Print one line when the broker has accepted us, and one if that takes long; notify systemd."""
    if not found.wait_until_up(PATIENCE_SECONDS):
        output.note(f"no broker answers at {found.endpoints[0]} yet: retrying until one does")
        found.wait_until_up()
    log_as(found.identity or LOG_NAME)
    output.say(f"ready {found.identity} {' '.join(found.handlers)}")
    notify_ready()


def find_worker(target: str) -> Worker:
    """The worker that `MODULE:WORKER` or `FILE.py:WORKER` names."""
    from scale0.client.worker import Worker

    source, _, name = target.partition(":")
    name = name or DEFAULT_NAME
    module = imported(source)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Worker):
        return found
    workers = [key for key, value in vars(module).items() if isinstance(value, Worker)]
    next_step = f"try {source}:{workers[0]}" if workers else "create one with worker = scale0.Worker()"
    what = "is not a scale0.Worker" if found is not None else "does not exist"
    raise errors.CommandError(f"{target}: {name} {what}", next_step, errors.USAGE)


def imported(source: str) -> ModuleType:
    folder, name = os.getcwd(), source
    if source.endswith(".py"):
        file = Path(source).resolve()
        if not file.is_file():
            raise errors.CommandError(f"{source}: file not found", "give a file or a module", errors.USAGE)
        folder, name = str(file.parent), file.stem
    # By name in both cases: a handler with a process of its own is imported there again.
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            step = f"give a module that can be imported from {folder}, or a .py file"
            raise errors.CommandError(f"module {name} not found", step, errors.USAGE) from error
        raise errors.CommandError(
            f"{source}: {error}", "install the module, or correct the import", errors.USAGE
        ) from error
    except Exception as error:
        raise errors.CommandError(
            f"{source}: {described(error)}", "correct the file, and start again", errors.USAGE
        ) from error
    if source.endswith(".py") and getattr(module, "__file__", None) != str(Path(source).resolve()):
        raise errors.CommandError(f"{source}: another module has the name {name}", "rename the file", errors.USAGE)
    return module


def described(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
