"""`scale0 agent`: run an agent, enrol a machine, renew and revoke certificates, and forget agents.

No secret is shown, and an error never repeats the token. A running agent has only stage0 and the agent in memory,
and nothing of the command line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.endpoints import default_identity, join_option
from scale0.cli.common.joining import secret_option
from scale0.cli.common.options import json_option, log_format_option
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.helen import data_dir_option
from scale0.client.admin.rows import HELEN_PREFIX
from scale0.kernel import codes
from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

if TYPE_CHECKING:
    from scale0.monitoring.pki.enrolment import EnrolError, EnrolmentEndpoint
    from scale0.monitoring.pki.tokens import EnrolmentToken

TOKEN_VARIABLE: Final = "SCALE0_ENROL_TOKEN"
NOT_HERE: Final = "run it on Helen's machine, and give her folder with --data-dir"
STILL_THERE: Final = "stop it first, or `scale0 agent revoke` its certificate on Helen's machine"


@click.group(invoke_without_command=True)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="Its configuration file: .json, .xml or .zpl."
)
@log_format_option
@click.pass_context
def agent(context: click.Context, config_file: Path | None) -> None:
    """Run an agent until SIGTERM or Ctrl-C.

    It runs checks and sends their results to Helen. It prints one line that starts with `ready` when it runs, and logs
    to stderr. It also works without Helen: results stay on disk until she can be reached. SIGHUP restarts its process,
    which reads its file again.

    \b
    Examples:
      scale0 agent enrol helen.example.com --token - < token
      scale0 agent --config agent/agent.zpl
    """
    if context.invoked_subcommand is not None:
        if config_file is not None:
            raise click.UsageError(f"--config belongs to `scale0 agent` itself, not to {context.invoked_subcommand}")
        return
    if config_file is None:
        raise click.UsageError("--config FILE is required; `scale0 agent enrol` makes one")
    from scale0.config import AgentConfig
    from scale0.config.edge.files import read_config
    from scale0.monitoring.agent.edge import stage0

    read_config(config_file, AgentConfig)  # report its errors before anything is started
    sys.stdout.flush()
    # As a file, so that nothing of the package is imported; -P: its folder is not in the module path.
    os.execv(sys.executable, [sys.executable, "-P", stage0.__file__, str(config_file)])


@agent.command()
@click.argument("host", metavar="[HOST[:PORT]]", required=False)
@secret_option("text", TOKEN_VARIABLE, "A token of `scale0 helen token`", ("",))
@click.option("--name", metavar="NAME", help="The agent's name (default: the token's, or the host name).")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default="agent",
    show_default=True,
    help="The folder for its files.",
)
@click.option("--force", is_flag=True, help="Replace an existing key and certificate.")
@json_option
def enrol(host: str | None, text: str | None, name: str | None, folder: Path, force: bool, wants_json: bool) -> None:
    """Enrol this machine as an agent of the Helen at HOST: a key, a certificate and a configuration file.

    The token is sent only to the Helen that made it. The key never leaves this machine.

    \b
    Examples:
      scale0 agent enrol helen.example.com --token - < token
      scale0 agent enrol --token - --name web-1 --dir /var/lib/scale0/agent < token
    With --json, an object: name, config, certificate, expires
    """
    from scale0.monitoring.pki import enrolment

    token = read_token(text)
    endpoint = helen_endpoint(host or token.address)
    try:
        files = enrolment.enrol(endpoint, token, name or token.name or default_identity()[:64], folder, force)
    except enrolment.EnrolError as error:
        raise enrol_error(error) from error
    if wants_json:
        shown = {
            "name": files.name,
            "config": str(files.config),
            "certificate": str(files.certificate),
            "expires": files.expires,
        }
        output.say(output.as_json(shown))
        return
    output.say(f"{files.name} is enrolled at {endpoint}; its certificate is renewed automatically")
    output.note(f"  next: scale0 agent --config {files.config}")


@agent.command()
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), required=True, help="The agent's configuration file."
)
@click.option("--now", "at_once", is_flag=True, help="Even if more than a third of the lifetime is left.")
@json_option
def renew(config_file: Path, at_once: bool, wants_json: bool) -> None:
    """Renew an agent's certificate if less than a third of its lifetime is left.

    A running agent does that by itself.

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
        raise enrol_error(error) from error
    if wants_json:
        output.say(output.as_json({"renewed": until is not None, "expires": until}))
    elif until is None:
        output.say("not due: more than a third of its lifetime is left")
    else:
        output.say(f"renewed until {output.moment(until)}")


@agent.command()
@click.argument("name")
@click.option("--serial", default="", metavar="HEX", help="Only the certificate with this serial.")
@data_dir_option
@json_option
def revoke(name: str, serial: str, data_dir: Path, wants_json: bool) -> None:
    """Revoke the certificates of agent NAME, which ends its connection at once.

    Run it on Helen's machine. With a new token the agent can enrol again.

    \b
    Example:
      scale0 agent revoke web-1 --data-dir /var/lib/scale0/helen
    With --json, an object: name, revoked (certificates that are recorded here)
    """
    from scale0.monitoring.pki.authority import CertificateAuthority

    if not data_dir.is_dir():
        raise errors.CommandError(f"there is no folder {data_dir}", "give Helen's folder with --data-dir", errors.USAGE)
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
        output.say(
            f"{name} has no valid certificate that is recorded here; certificates of other authorities are revoked"
        )


@agent.command()
@click.argument("name", shell_complete=completion_values.agents)
@join_option
@data_dir_option
def forget(name: str, join: str, data_dir: Path) -> None:
    """Delete agent NAME, which will not return, and the state of its checks from Helen.

    Run it on Helen's machine. The history stays. The certificate stays valid: revoke it, or the agent may return.

    \b
    Example:
      scale0 agent forget web-1 --data-dir /var/lib/scale0/helen
    """
    from scale0.errors import CallError

    token = read_secret(data_dir / TOKEN_FILE)
    if token is None:
        raise errors.CommandError(f"there is no token of Helen in {data_dir}", NOT_HERE, errors.USAGE)
    known = False
    with connect(join, DISCOVERY_SECONDS) as client:
        for helen in helens.need_helens(client):
            try:
                client.call(f"{HELEN_PREFIX}{helen}.forget", agent=name, token=token)
                known = True
            except CallError as error:
                if error.code == codes.IN_USE:
                    raise errors.CommandError(f"agent {name} is connected to {helen}", STILL_THERE) from error
                if error.code not in (codes.NO_SUCH_SERVICE, codes.WRONG_CREDENTIALS):
                    raise
    if not known:
        raise errors.CommandError(
            f"the Helen of {data_dir} does not know agent {name}", "`scale0 agents` lists the agents of every Helen"
        )
    output.say(f"{name} is deleted")


def read_token(text: str | None) -> EnrolmentToken:
    """The given token, or an error that does not repeat it."""
    from scale0.monitoring.pki import tokens

    found = tokens.read_token((text or "").strip())
    if found is None:
        what = "the value of --token is not a token" if text else "--token is required"
        raise errors.CommandError(what, "make one with `scale0 helen token` on Helen's machine", errors.USAGE)
    return found


def helen_endpoint(text: str) -> EnrolmentEndpoint:
    from scale0.config.value_types import DEFAULT_HELEN_PORT, split_address
    from scale0.monitoring.pki.enrolment import EnrolmentEndpoint

    parts = split_address(text, DEFAULT_HELEN_PORT)
    if parts is None:
        what = f"{text!r} is not HOST or HOST:PORT" if text else "the token does not contain Helen's address"
        raise errors.CommandError(what, "scale0 agent enrol HOST --token -", errors.USAGE)
    return EnrolmentEndpoint(*parts)


def enrol_error(error: EnrolError) -> errors.CommandError:
    return errors.CommandError(str(error), error.next_step, errors.UNREACHABLE if error.unreachable else errors.NO)
