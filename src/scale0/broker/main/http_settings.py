"""The settings of an HTTP server: one JSON line on its standard input.

It contains no secret: the server reads the machine's token from its file, and users bring their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from scale0.config import WILDCARDS, BrokerConfig, ExportConfig
from scale0.kernel.edge.secret_files import TOKEN_FILE

LOOPBACK: Final = "127.0.0.1"
STARTED_FILE: Final = "management.started"
"""In the data folder: the server's last address. If it exists, a first link was issued."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: str = "tcp://127.0.0.1:5700"
    """The broker's frontend."""
    data_dir: str = ""
    """The broker's folder on this machine; blank: the broker is remote, and there is no local token for reading."""
    bind: str = "127.0.0.1"
    port: int = 5780
    """0: any free port; the `ready` line has the number."""
    certificate: str = ""
    private_key: str = ""
    hosts: tuple[str, ...] = ()
    """Host names that are accepted in addition to the bound address and localhost."""
    metrics_open: bool = False
    openapi_open: bool = False
    exports: tuple[ExportConfig, ...] = ()
    segments: str = ""
    """The folder of exported journal segments; blank: a folder in `data_dir`."""
    warehouse: str = ""
    """The folder of the pipeline's tables; blank: a folder in `data_dir`."""
    wants_link: bool = False
    """Send a one-time link with `ready`."""
    log_format: str = "text"

    @property
    def has_tls(self) -> bool:
        return bool(self.certificate)

    @property
    def token_file(self) -> Path | None:
        return Path(self.data_dir) / TOKEN_FILE if self.data_dir else None


class HttpReady(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the `ready` line."""

    url: str
    link: str = ""
    """A one-time link, if one was requested."""


def server_of(config: BrokerConfig, endpoint: str, *, wants_link: bool) -> HttpSettings | None:
    """The settings for a broker's server; None if its configuration disables HTTP."""
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
        openapi_open=management.openapi_open,
        exports=management.exports,
        segments=config.segments,
        wants_link=wants_link,
    )
