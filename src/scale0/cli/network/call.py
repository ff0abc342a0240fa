"""`scale0 call`: one request from the shell."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, joining, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import join_option
from scale0.cli.network import listing
from scale0.kernel.errors import Scale0Error

if TYPE_CHECKING:
    from scale0.client.client import Client

WAIT_BEFORE_HINT_SECONDS: Final = 1.0
"""After this time without an answer, check whether any worker offers the service."""
STDIN: Final = "-"
SECONDS: Final = click.FloatRange(0, 86_400, min_open=True)

_NAMED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII | re.DOTALL)


def parsed(word: str) -> Any:
    """A word as JSON, or else as text."""
    import msgspec

    try:
        return msgspec.json.decode(word.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, ValueError):
        return word


def arguments_of(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """`key=value` words are named arguments, the others positional; each name occurs once."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        named = _NAMED.fullmatch(word)
        if named is None:
            args.append(parsed(word))
        elif named[1] in kwargs:
            raise click.UsageError(f"{named[1]} is given twice")
        else:
            kwargs[named[1]] = parsed(named[2])
    return args, kwargs


@click.command()
@click.argument("service", required=False, shell_complete=completion_values.services)
@click.argument("words", nargs=-1, metavar="[ARGS]...", type=click.UNPROCESSED)
@join_option
@joining.token_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=30.0, help="How long to wait for the answer (30).")
@click.option("--retry", is_flag=True, help="It may run twice: if its worker dies, another one repeats it.")
@click.option("--raw", is_flag=True, help="ARGS and the answer are frames of bytes (-: stdin).")
@click.option("--json", "wants_json", is_flag=True, help="Print answers as JSON, one on each line.")
def call(
    service: str | None,
    words: tuple[str, ...],
    join: str,
    token_text: str | None,
    timeout: float,
    retry: bool,
    raw: bool,
    wants_json: bool,
) -> None:
    """Call SERVICE and print its answer.

    Without SERVICE, the command lists the services. Each of ARGS is JSON if it is valid JSON, else text; key=value is a
    named argument. Write a text with = as JSON: '"a=b"'. A stream is printed part by part. After -- every word is an
    argument, also one that starts with a dash.

    \b
    Examples:
      scale0 call hello world
      scale0 call thumbs.make cat.png width=100
      scale0 call math.add 2 3 --json
      scale0 call math.negate -- -5
      scale0 call --join 10.0.0.1 --token - < token
      scale0 call image.rotate --raw - < cat.png > rotated.png
    """
    if token_text:
        joining.join(join, "frontend", token_text, None, joining.default_name())
    with connect(join, timeout) as client:
        if service is None:
            listing.show_services(client, wants_json)
            return
        hint = threading.Timer(WAIT_BEFORE_HINT_SECONDS, hint_if_not_offered, (client, service, timeout))
        hint.daemon = True
        hint.start()
        try:
            if raw:
                call_raw(client, service, words, retry)
            else:
                call_json(client, service, words, retry, wants_json)
        finally:
            hint.cancel()


def call_json(client: Client, service: str, words: Sequence[str], retry: bool, wants_json: bool) -> None:
    args, kwargs = arguments_of(words)
    reserved = {"timeout", "retry"} & kwargs.keys()
    if reserved:
        # These are parameters of `Client`; by position they reach the service.
        raise click.UsageError(
            f"{min(reserved)} cannot be a named argument: give it by position, or use --{min(reserved)}"
        )
    show = output.as_json if wants_json else output.as_value
    pending = client.start(service, *args, retry=retry, **kwargs)
    shown = 0
    for value in pending.parts():
        output.say(show(value))
        shown += 1
    if not shown:
        output.say(show(pending.result()))


def call_raw(client: Client, service: str, words: Sequence[str], retry: bool) -> None:
    bodies = [sys.stdin.buffer.read() if word == STDIN else word.encode(errors="surrogateescape") for word in words]
    for frames in client.start_request(service, *bodies, retry=retry).parts():
        sys.stdout.buffer.write(b"".join(frames))
        sys.stdout.buffer.flush()
    if output.on_terminal():
        output.say()


def hint_if_not_offered(client: Client, service: str, timeout: float) -> None:
    """Print why it takes so long, if no worker offers the service."""
    try:
        offered = any(row["service"] == service and row["backends"] for row in client.services())
    except (Scale0Error, RuntimeError):
        return  # the call itself reports the error
    if not offered:
        output.note(f"no worker offers {service} yet; waiting up to {timeout:g} s for one (see `scale0 services`)")
