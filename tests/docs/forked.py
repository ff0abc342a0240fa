"""A `scale0` that starts at once: a process that has imported everything is forked for each command.

Each command is a process of its own, with the arguments, folder, variables, streams and namespaces of its caller; it
ends as if Python had been started for it, and gets its signals. A hundred commands take a hundred times as long to
import as to run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import selectors
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

REPOSITORY: Final = Path(__file__).resolve().parents[2]
NAMESPACES: Final = 0x40000000 | 0x04000000 | 0x00020000
"""CLONE_NEWNET, CLONE_NEWUTS and CLONE_NEWNS: a machine of `tests.docs.machines` has its own of each."""
HEAD: Final = struct.Struct("=i")
STREAMS: Final = 3
FIRST: Final = ("scale0.cli", "scale0.client", "scale0.config", "scale0.kernel", "scale0.broker", "scale0.monitoring")
"""Imported with all that is in them."""
BESIDE: Final = ("scale0.http.server", "scale0.pipeline.reading", "duckdb", "rich.live", "rich.table", "pandas")
"""And what a command imports by itself, or pyarrow for it."""

ASKS: Final = """#!{python} -IS
import _signal, _socket, os, sys
signals = _signal.SIGINT, _signal.SIGTERM
_signal.pthread_sigmask(_signal.SIG_BLOCK, signals)
words = [os.getcwd(), str(len(sys.argv)), *sys.argv, *map("=".join, os.environ.items())]
asked = os.fsencode("\\0".join(words))
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect({place!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range({streams}))
connection.sendmsg([len(asked).to_bytes(4, sys.byteorder)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while asked:
    asked = asked[connection.send(asked):]
pid = connection.recv(4)
for number in signals:
    _signal.signal(number, lambda number, _: os.kill(int.from_bytes(pid, sys.byteorder), number))
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, signals)
for number in range({streams}):
    os.close(number)
ended = connection.recv(4)
os._exit(int.from_bytes(ended, sys.byteorder) & 255 if ended else 255)
"""
"""What stands where `scale0` is looked for; without imports that take long. It holds no stream: a pipe ends in time.

A signal that comes before the command has a process is passed on once it has one."""


@contextlib.contextmanager
def forked(folder: Path) -> Iterator[Path]:
    """The folder with a quick `scale0` in it, for PATH."""
    tools = folder / "tools"
    tools.mkdir()
    place = str(folder / "forks")
    command = tools / "scale0"
    command.write_text(ASKS.format(python=sys.executable, place=place, streams=STREAMS), encoding="utf-8")
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])}
    words = [sys.executable, "-u", "-m", "tests.docs.forked", place]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        try:
            assert server.stdout
            assert server.stdout.readline() == b"ready\n"
            yield tools
        finally:
            server.kill()


def main() -> None:
    """Fork a process for each command that is asked for, and tell how it ended."""
    for name in FIRST:
        _import_all(name)
    for name in BESIDE:
        with contextlib.suppress(ImportError):  # not everybody has pandas; nothing here needs it
            importlib.import_module(name)
    gc.freeze()  # what was imported stays: to look through it again would be to copy it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen(64)
    sys.stdout.write("ready\n")
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fileobj)
                _tell_end(key.fd, *key.data)
                continue
            connection, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                selector.close()
                listener.close()
                _become(connection)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _import_all(name: str) -> None:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}."):
        if not found.name.endswith(("__main__", "_worker", "demo.workers")):  # importing them has effects
            importlib.import_module(found.name)


def _tell_end(descriptor: int, pid: int, connection: socket.socket) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):  # whoever asked was killed
        connection.sendall(HEAD.pack(code if code >= 0 else 128 - code))
    connection.close()


def _become(connection: socket.socket) -> NoReturn:
    """The process that was asked for."""
    size, streams, _, _ = socket.recv_fds(connection, HEAD.size, STREAMS)
    folder, count, *words = os.fsdecode(_rest(connection, HEAD.unpack(size)[0])).split("\0")
    asker = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    _move_to(asker)
    os.chdir(folder)
    os.environ.clear()
    for word in words[int(count) :]:
        name, _, os.environ[name] = word.partition("=")
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv[:] = words[: int(count)]
    connection.sendall(HEAD.pack(os.getpid()))
    connection.close()
    _run()


def _run() -> NoReturn:
    """The command, to its end; taking apart what was imported is left to the system."""
    from scale0.cli.main import main as run

    status: Any = 1
    try:
        run()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status or 0)


def _rest(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += connection.recv(size - len(got))
    return got


def _move_to(pid: int) -> None:
    """To the machine of that process."""
    descriptor = os.pidfd_open(pid)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, NAMESPACES):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


if __name__ == "__main__":
    main()
