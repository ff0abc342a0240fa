"""What an agent and its keepers of plugins say to each other, and what both know of a plugin's limits.

Lives here: constants and the layout of messages. Never here: a process, on either side.
"""

from __future__ import annotations

import struct
from typing import Final

READY: Final = struct.Struct("!i")
"""A keeper's first word: its process."""
ENDED: Final = 0
TIMED_OUT: Final = 1
TOO_MUCH_OUTPUT: Final = 2
TOO_MANY_PROCESSES: Final = 3
NOT_STARTED: Final = 4
LEFT: Final = 128
"""Added: something that it started could not be killed."""

ASKED: Final = struct.Struct("!d")
"""The timeout; behind it the words, with a zero byte between two."""
ANSWERED: Final = struct.Struct("!BidI")
"""How it ended, exit status, seconds, bytes of output; behind it the output, then what went to stderr."""

MAX_WORDS_BYTES: Final = 65_536
MAX_OUTPUT_BYTES: Final = 65_536
"""Kept of stdout; a plugin that writes more is killed."""
MAX_STDERR_BYTES: Final = 65_536
"""The same of stderr."""
KEPT_STDERR_BYTES: Final = 4_096
KILL_SECONDS: Final = 2.0
"""How long processes that were killed may take to be gone."""
MAX_RUNS: Final = 1_000
"""Then the asker takes a fresh keeper: what is started gets our own CPU time on top of its limit."""
MAX_PROCESSES: Final = 128
"""Processes that one plugin may have at once."""
