"""`scale0 management`: the HTTP server as a process of its own, for a broker elsewhere or one that does not start it.

The rules for a broker's own server (TLS beyond loopback) hold here, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from scale0.cli.common import errors
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import log_format_option

A_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def management() -> None:
    """The HTTP server of a broker: API, console and metrics.

    A broker starts it if its file sets `management.enabled`, and `scale0 up` does; otherwise use this command.

    \b
    Example:
      scale0 management serve --join 10.0.0.1 --port 5780
    """


@management.command()
@join_option
@click.option(
    "--data-dir", default="", metavar="DIR", help="The broker's folder on this machine, for rates, events and links."
)
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on.")
@click.option("--port", default=5780, show_default=True, type=click.IntRange(0, 65_535), help="The port; 0: any.")
@click.option("--certificate", type=A_FILE, help="PEM file, to serve HTTPS; required beyond loopback.")
@click.option("--private-key", type=A_FILE, help="PEM file with the key of the certificate.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name that browsers use; may be repeated.")
@log_format_option
def serve(
    join: str,
    data_dir: str,
    bind: str,
    port: int,
    certificate: Path | None,
    private_key: Path | None,
    hosts: tuple[str, ...],
) -> None:
    """Serve HTTP for the broker at --join until SIGTERM or Ctrl-C.

    It prints one line that starts with `ready`, with its address, and logs to stderr. Without --data-dir it has what
    management commands return; rates, health, events and links need the folder of a broker on this machine.

    \b
    Examples:
      scale0 management serve --data-dir .scale0 --port 5781
      scale0 management serve --join 10.0.0.1 --bind 0.0.0.0 --port 443 --host console.example.com \\
          --certificate console.pem --private-key console-key.pem
    """
    from scale0.broker.main.http_settings import HttpSettings
    from scale0.config import HttpConfig, management_errors
    from scale0.http.server import for_ever, main

    config = HttpConfig(
        enabled=True,
        bind=bind,
        port=port,
        certificate=str(certificate or ""),
        private_key=str(private_key or ""),
        hosts=hosts,
    )
    wrong = management_errors(config)
    if wrong:
        step = "the options have the names of these keys: see scale0 management serve --help"
        raise errors.CommandError("; ".join(wrong), step, errors.USAGE)
    settings = HttpSettings(
        endpoint=join,
        data_dir=str(Path(data_dir).absolute()) if data_dir else "",
        bind=bind,
        port=port,
        certificate=config.certificate,
        private_key=config.private_key,
        hosts=hosts,
    )
    sys.exit(main(settings, for_ever))
