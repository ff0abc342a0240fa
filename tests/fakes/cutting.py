"""A connection to a database that can be cut at a chosen word."""

from __future__ import annotations

import contextlib
import socket
import threading


class Cutter:
    """Passes bytes between loopback and a server's Unix socket. Armed, it cuts when it has passed a word on."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.word = b""
        """Cut each connection that says this, after the server got it, and before its answer passes."""
        self.cuts = 0
        self.shut = False
        """Take no connections: the database is away."""
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.shut:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._place)
            self._open |= {client, server}
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if from_client and self.word and self.word in data:
                    self.word = b""
                    self.cuts += 1
                    # The client receives nothing any more; the server does what it was asked.
                    source.shutdown(socket.SHUT_RDWR)
                    target.sendall(data)
                    # It learns that nobody is there once it has done so: half a sentence must not keep its locks.
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()
