"""What a management server is told when it starts: one JSON line on its standard input.

Lives here: the shape of that line, and how a broker's file becomes one. Never here: a secret; the token of the broker's
machine is read from its file, and everybody else brings their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from scale0.config import WILDCARDS, BrokerConfig, ExportConfig
from scale0.kernel.edge.secret_files import TOKEN_FILE

LOOPBACK: Final = "127.0.0.1"
STARTED_FILE: Final = "management.started"
"""In the data folder: where the server was last; if it is there, a first link was told."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to serve, and whose broker this is."""

    endpoint: str = "tcp://127.0.0.1:5700"
    """The broker's frontend."""
    data_dir: str = ""
    """The broker's folder on this machine; blank: it is on another, and there is no token for reading on our own."""
    bind: str = "127.0.0.1"
    port: int = 5780
    """0: any that is free; the line `ready` says which."""
    certificate: str = ""
    private_key: str = ""
    hosts: tuple[str, ...] = ()
    """Host names that are accepted besides the bound address and localhost."""
    metrics_open: bool = False
    exports: tuple[ExportConfig, ...] = ()
    segments: str = ""
    """Where the broker's journal is written out to; blank: a folder in `data_dir`."""
    warehouse: str = ""
    """Where the pipeline's tables are; blank: a folder in `data_dir`."""
    wants_link: bool = False
    """Tell a one-time link with `ready`."""
    log_format: str = "text"

    @property
    def has_tls(self) -> bool:
        """True when it serves HTTPS."""
        return bool(self.certificate)

    @property
    def token_file(self) -> Path | None:
        """What authorises reading on our own."""
        return Path(self.data_dir) / TOKEN_FILE if self.data_dir else None


class HttpReady(msgspec.Struct, frozen=True, kw_only=True):
    """What it says when it serves, after the word `ready`."""

    url: str
    link: str = ""
    """A way in that works once, if one was wanted."""


def server_of(config: BrokerConfig, endpoint: str, *, wants_link: bool) -> HttpSettings | None:
    """A broker's server; None: its file wants none."""
    management = config.management
    if not management.enabled:
        return None
    port = endpoint.rpartition(":")[2]
    host = LOOPBACK if config.bind in WILDCARDS else config.bind
    return HttpSettings(
        endpoint=f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}",
        data_dir=str(Path(config.data_dir).absolute()),
        bind=management.bind,
        port=management.port,
        certificate=management.certificate,
        private_key=management.private_key,
        hosts=management.hosts,
        metrics_open=management.metrics_open,
        exports=management.exports,
        segments=config.segments,
        wants_link=wants_link,
    )
