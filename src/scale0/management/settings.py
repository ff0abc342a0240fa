"""What a management server is told when it starts: one JSON line on its standard input.

Lives here: the shape of that line. Never here: a secret; the token of the broker's machine is read from its file, and
everybody else brings their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from scale0.io.files import TOKEN_FILE


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    exports: tuple[dict[str, Any], ...] = ()
    segments: str = ""
    """Where the broker's journal is written out to; blank: `segments` in `data_dir`."""
    warehouse: str = ""
    """Where the pipeline's tables are; blank: nothing is read of them."""

    @property
    def has_tls(self) -> bool:
        """True when it serves HTTPS."""
        return bool(self.certificate)

    @property
    def token_file(self) -> Path | None:
        """What authorises reading on our own."""
        return Path(self.data_dir) / TOKEN_FILE if self.data_dir else None
