"""`scale0 agent enrol`, `renew` and `revoke`: how a machine becomes an agent, stays one, and stops being one.

Lives here: the three commands. Never here: keys, certificates and the conversation with Helen. Invariant: no secret is
shown, and an error never repeats the token.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.watch_mode import json_option
from scale0.cli.monitoring.helen_init import data_dir_option

if TYPE_CHECKING:
    from scale0.monitoring.pki.enrolment import EnrolError, EnrolmentEndpoint
    from scale0.monitoring.pki.tokens import EnrolmentToken

TOKEN_VARIABLE: Final = "SCALE0_ENROL_TOKEN"
MAX_TOKEN_LINE: Final = 2_000


@click.command()
@click.argument("host", metavar="[HOST[:PORT]]", required=False)
@click.option("--token", "text", envvar=TOKEN_VARIABLE, help=f"From `scale0 helen token`; -: stdin ({TOKEN_VARIABLE}).")
@click.option("--name", metavar="NAME", help="What to be called (the token's name, else the host's).")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default="agent", show_default=True, help="Where to.")
@click.option("--force", is_flag=True, help="Take the place of the key and certificate that are there.")
@json_option
def enrol(host: str | None, text: str | None, name: str | None, folder: Path, force: bool, wants_json: bool) -> None:
    """Make this machine an agent of the Helen at HOST: a key, a certificate and a file to start from.

    The token is told to nobody but the Helen that made it. The key never leaves this machine.

    \b
    Examples:
      scale0 agent enrol helen.example.com --token TOKEN
      scale0 agent enrol --token - --name web-1 --dir /var/lib/scale0/agent < token
    With --json, an object: name, config, certificate, expires
    """
    from scale0.cli.broker.command import default_identity
    from scale0.monitoring.pki import enrolment

    token = read(text)
    place = place_of(host or token.address)
    try:
        files = enrolment.enrol(place, token, name or token.name or default_identity()[:64], folder, force)
    except enrolment.EnrolError as error:
        raise trouble_of(error) from error
    if wants_json:
        shown = {
            "name": files.name,
            "config": str(files.config),
            "certificate": str(files.certificate),
            "expires": files.expires,
        }
        output.say(output.as_json(shown))
        return
    output.say(f"{files.name} is enrolled at {place}; its certificate renews itself from now on")
    output.note(f"  next: scale0 agent --config {files.config}")


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), required=True, help="The agent's file.")
@click.option("--now", "at_once", is_flag=True, help="Also while more than a third of the certificate's life is left.")
@json_option
def renew(config_file: Path, at_once: bool, wants_json: bool) -> None:
    """Renew an agent's certificate, if a third of its life is left. A running agent does so by itself.

    \b
    With --json, an object: renewed, expires (null: it was not due)

    \b
    Example:
      scale0 agent renew --config agent/agent.zpl
    """
    from scale0.config import AgentConfig
    from scale0.config.edge.files import read_config
    from scale0.monitoring.pki import enrolment

    config = read_config(config_file, AgentConfig)
    try:
        until = enrolment.renew(config) if at_once else enrolment.renew_if_due(config, time.time())
    except enrolment.EnrolError as error:
        raise trouble_of(error) from error
    if wants_json:
        output.say(output.as_json({"renewed": until is not None, "expires": until}))
    elif until is None:
        output.say("it is not due: more than a third of its life is left")
    else:
        output.say(f"renewed until {output.moment(until)}")


@click.command()
@click.argument("name")
@click.option("--serial", default="", metavar="HEX", help="Only the certificate with this serial.")
@data_dir_option
@json_option
def revoke(name: str, serial: str, data_dir: Path, wants_json: bool) -> None:
    """Revoke the certificates of agent NAME, on Helen's machine: its connection ends at once.

    A new token lets it in again.

    \b
    Example:
      scale0 agent revoke web-1 --data-dir /var/lib/scale0/helen
    With --json, an object: name, revoked (certificates that are on record here)
    """
    from scale0.monitoring.pki.authority import CertificateAuthority

    if not data_dir.is_dir():
        raise errors.CommandError(f"there is no folder {data_dir}", "name Helen's folder with --data-dir", errors.USAGE)
    try:
        count = CertificateAuthority(data_dir).revoke(name, time.time(), serial)
    except ValueError as error:
        raise errors.CommandError(
            str(error), "give an agent's name, and a serial in hexadecimal", errors.USAGE
        ) from error
    if wants_json:
        output.say(output.as_json({"name": name, "revoked": count}))
    elif count:
        output.say(f"revoked {count} certificate{'s' * (count != 1)} of {name}; its connection ends at once")
    else:
        output.say(f"{name} has no certificate on record here that still holds; what others signed is revoked")


def read(text: str | None) -> EnrolmentToken:
    """The token that was given, or an error that does not repeat it."""
    from scale0.cli.common.argv_scrubbing import hide
    from scale0.monitoring.pki.tokens import read_token

    hide(text or "")
    if text == "-":
        text = sys.stdin.readline(MAX_TOKEN_LINE)
    found = read_token((text or "").strip())
    if found is None:
        what = "that is no token" if text else "a token is needed"
        raise errors.CommandError(what, "make one on Helen's machine: `scale0 helen token`", errors.USAGE)
    return found


def place_of(text: str) -> EnrolmentEndpoint:
    """Where Helen is."""
    from scale0.config.value_types import DEFAULT_HELEN_PORT, split_address
    from scale0.monitoring.pki.enrolment import EnrolmentEndpoint

    parts = split_address(text, DEFAULT_HELEN_PORT)
    if parts is None:
        what = f"{text!r} is not HOST or HOST:PORT" if text else "the token does not say where Helen is"
        raise errors.CommandError(what, "scale0 agent enrol HOST --token TOKEN", errors.USAGE)
    return EnrolmentEndpoint(*parts)


def trouble_of(error: EnrolError) -> errors.CommandError:
    """What went wrong, and what to do next."""
    return errors.CommandError(str(error), error.next_step, errors.UNREACHABLE if error.unreachable else errors.NO)
