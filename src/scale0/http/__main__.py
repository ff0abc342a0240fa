"""`python -P -m scale0.http`: the HTTP server as a process.

The settings are one JSON line on standard input, because other users can read a command line.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from scale0.broker.main.http_settings import HttpSettings
from scale0.http.server import main as serve

MAX_LINE_BYTES: Final = 256 * 1024


def main() -> int:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
        chunk = os.read(sys.stdin.fileno(), 1)
        if not chunk:
            break
        line += chunk
    try:
        settings = msgspec.json.decode(bytes(line), type=HttpSettings)
    except msgspec.DecodeError as error:
        sys.stderr.write(f"invalid settings on standard input: {error}\n")
        return 2
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
