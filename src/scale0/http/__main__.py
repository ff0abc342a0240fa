"""`python -P -m scale0.http`: the HTTP server as a process, told by one JSON line on standard input.

Lives here: reading that line. Never here: an option of the command line: what is said there, everybody can read.
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
    """Read what to do, and do it; the exit status."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            break
        line += piece
    try:
        settings = msgspec.json.decode(bytes(line), type=HttpSettings)
    except msgspec.DecodeError as error:
        sys.stderr.write(f"the settings are not as they should be: {error}\n")
        return 2
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
