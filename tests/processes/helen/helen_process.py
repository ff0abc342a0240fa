"""A real Helen process for tests, with an authority of her own, and raw agents that come to her.

Lives here: one process of ours, its files and its clients. Never here: what is tested. Invariant: whatever a test does,
the process that it started is gone at the end, and no other; one that logged an exception fails its test.

    with helen_process(folder, broker) as helen:
        with helen.agent("web-1") as agent:
            agent.say(b"hello 2 trial\n")
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale0.monitoring.pki.authority import CertificateAuthority, create_authority
from scale0.monitoring.pki.certificates import key_pem, new_key, request_pem
from tests.fakes.broker_process import READY_SECONDS, STOP_SECONDS, BrokerProcess
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_SECONDS


class Agent:
    """A raw connection of an agent: lines and blobs by hand."""

    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self.socket = wrapped
        self._came = bytearray()

    def say(self, data: bytes) -> None:
        """Send it."""
        self.socket.sendall(data)

    def say_blob(self, head: bytes, body: Any) -> None:
        """A command with a blob; a body that is no bytes goes as JSON."""
        blob = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.say(b"%b %d\n%b\n" % (head, len(blob), blob))

    def line(self) -> bytes:
        """The next line, without its end; empty: the connection has ended."""
        while b"\n" not in self._came:
            if not self._more():
                return b""
        line, _, rest = bytes(self._came).partition(b"\n")
        self._came[:] = rest
        return line

    def blob(self, size: int) -> bytes:
        """So many bytes, and the end of line behind them."""
        while len(self._came) < size + 1:
            assert self._more(), "the connection ended within a blob"
        found, end = bytes(self._came[:size]), bytes(self._came[size : size + 1])
        del self._came[: size + 1]
        assert end == b"\n"
        return found

    def schedule(self) -> dict[str, Any]:
        """The next word is a schedule: what it says."""
        word, _, size = self.line().split(b" ")
        assert word == b"schedule"
        found: dict[str, Any] = json.loads(self.blob(int(size)))
        return found

    def ended(self) -> bool:
        """True once the other end has closed; what it says until then is thrown away."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while self._more():
                self._came.clear()
        return True

    def close(self) -> None:
        """With a goodbye."""
        with contextlib.suppress(OSError):
            self.socket.unwrap()
        self.socket.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _more(self) -> bool:
        part = self.socket.recv(65_536)
        self._came += part
        return bool(part)


class HelenProcess:
    """One `scale0 helen`, her files in `folder`."""

    def __init__(self, folder: Path, broker: BrokerProcess, identity: str, ca: HelenProcess | None, more: Any) -> None:
        self.folder = folder
        self.identity = identity
        if ca is None:
            self.authority = create_authority(folder, ["localhost", "127.0.0.1"], time.time())
        else:
            # Helens that share agents share an authority: only the store is her own.
            self.authority = ca.authority
        self.files: Path = folder if ca is None else ca.files
        self.config: dict[str, Any] = {
            "identity": identity,
            "broker": broker.endpoints["backend"].removeprefix("tcp://"),
            "helen_port": free_port(),
            "certificate": str(self.files / "helen.pem"),
            "private_key": str(self.files / "helen-key.pem"),
            "client_ca": str(self.files / "agents-ca.pem"),
            "data_dir": str(folder),
            "segments": "off",
            **more,
        }
        self.file = folder / "helen.json"
        self.log = folder / "helen.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that runs now, or ran last."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start her, and wait until she serves; where she listens is then kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.config))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scale0", "helen", "--config", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        line = self._first_line()
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.port = self.config["helen_port"] = int(words["port"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop her; the exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(STOP_SECONDS)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def close(self) -> None:
        """End her, whatever happened; nothing is left behind."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.end(signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def said(self) -> str:
        """Her log."""
        return self.log.read_text(errors="replace")

    def certificate(self, name: str) -> tuple[Path, Path]:
        """The files of an agent's certificate, signed by her authority for a token."""
        key = new_key()
        paths = self.files / f"{name}.pem", self.files / f"{name}-key.pem"
        token = self.authority.make_token(time.time(), 10, name).text()
        body = json.dumps({"token": token, "csr": request_pem(key, name)}).encode()
        chain = CertificateAuthority(self.files).enrol(body, None, time.time())
        assert isinstance(chain, bytes), chain
        paths[0].write_bytes(chain)
        paths[1].write_text(key_pem(key))
        return paths

    def connect(self, files: tuple[Path, Path] | None = None) -> Agent:
        """A connection, with a certificate or without."""
        context = ssl.create_default_context(cafile=self.files / "ca.pem")
        if files is not None:
            context.load_cert_chain(*files)
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)
        try:
            return Agent(context.wrap_socket(raw, server_hostname="localhost"))
        except BaseException:
            raw.close()
            raise

    def agent(self, name: str) -> Agent:
        """An agent of that name, connected."""
        return self.connect(self.certificate(name))

    def accepted(self, name: str) -> Agent:
        """An agent of version 2 that was taken in."""
        agent = self.agent(name)
        agent.say(b"hello 2 trial\n")
        assert agent.line().startswith(b"accepted ")
        return agent

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        until = time.monotonic() + READY_SECONDS
        said = b""
        while not said.endswith(b"\n") and (left := until - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0]:
                break
            more = os.read(descriptor, 65_536)
            if not more:
                break
            said += more
        if not said.startswith(b"ready "):
            self.close()
            raise AssertionError(f"Helen is not ready: {said!r}\n{self.said()[-4_000:]}")
        return said.decode()


@contextlib.contextmanager
def helen_process(
    folder: Path, broker: BrokerProcess, identity: str = "h1", ca: HelenProcess | None = None, **more: Any
) -> Iterator[HelenProcess]:
    """A running Helen; ended when the block ends."""
    helen = HelenProcess(folder, broker, identity, ca, more)
    try:
        helen.start()
        yield helen
        assert "Traceback" not in helen.said(), helen.said()[-4_000:]
    finally:
        helen.close()
