"""Arguments that nobody else shall read: `ps` shows the command line of every process.

Lives here: wiping a word out of it. Never here: what the word means. It works on Linux, where a process may write to
its own arguments; elsewhere nothing happens, and the word should come by stdin or the environment.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

ARGUMENTS: Final = 48
"""The field of /proc/self/stat that has the address of the command line; its end is in the next one."""


def hide(word: str) -> None:
    """Overwrite a word of our own command line."""
    secret = word.encode()
    if not secret:
        return
    try:
        # The second field is the program's name in parentheses, and may have anything in it.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARGUMENTS - 3]), int(fields[ARGUMENTS - 2])
        if not 0 < start < end:
            return
        words = ctypes.string_at(start, end - start)
        place = words.find(secret)
        while place >= 0:
            ctypes.memset(start + place, ord("x"), len(secret))
            place = words.find(secret, place + len(secret))
    except (OSError, ValueError, IndexError):
        return
