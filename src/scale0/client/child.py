"""A child: one handler's process. Started by `children` as `python -m`, never by hand.

Lives here: find the function by name, then serve one request after another until the parent is gone.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from scale0.broker.backend import Work
from scale0.client.children import CHILD_MARK, CHILD_NAME, MAIN, receive, send
from scale0.client.payload import Signature
from scale0.client.perform import Offer, perform

PR_SET_PDEATHSIG: Final = 1
"""Of prctl(2). It heeds the thread that started us: a hand of the crew, which lives as long as its worker."""


def find(module: str, name: str, path: str) -> Callable[..., Any]:
    """The function, by the names that its parent knows it by."""
    if module == MAIN:
        # The guard `if __name__ == "__main__"` keeps the script from starting a second worker here.
        found: Any = runpy.run_path(path, run_name=CHILD_NAME)
        first, *rest = name.split(".")
        found = found[first]
    else:
        found, rest = importlib.import_module(module), name.split(".")
    for part in rest:
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def end_with_parent() -> None:
    """Have the kernel kill us when the parent dies without a word: a busy handler would not notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Serve on the inherited socket."""
    descriptor, module, name, path, raw = arguments
    # A stop is the parent's business: it lets us finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    stream = socket.socket(fileno=int(descriptor))
    os.environ[CHILD_MARK] = "1"
    function = find(module, name, path)
    del os.environ[CHILD_MARK]
    is_raw = raw == "1"
    handler = Offer(name, function, 1, False, False, is_raw, None if is_raw else Signature(function))
    while True:
        bodies = receive(stream)
        if bodies is None:
            return
        work = Work("", name, bodies, 0.0)
        how, _, what = perform(handler, work, lambda _id, parts: send(stream, ["partial", list(parts)]))
        send(stream, [how, list(what)])


if __name__ == "__main__":
    main(sys.argv[1:])
