"""Real receivers of metrics: Debian's carbon-cache, an OTLP collector of OpenTelemetry's classes, and sockets."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_SECONDS, until

CARBON = "/usr/bin/carbon-cache"

CARBON_CONF = """
[cache]
STORAGE_DIR = {folder}/
LOCAL_DATA_DIR = {folder}/whisper/
CONF_DIR = {folder}/conf/
LOG_DIR = {folder}/log/
PID_DIR = {folder}/
USER =
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {port}
ENABLE_UDP_LISTENER = False
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = 0
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = {query}
MAX_UPDATES_PER_SECOND = 10000
MAX_CREATES_PER_MINUTE = inf
ENABLE_LOGROTATION = False
CARBON_METRIC_INTERVAL = 0
"""
SCHEMAS = "[all]\npattern = .*\nretentions = 1s:10m\n"
FETCH = "import json, sys, whisper; print(json.dumps(whisper.fetch(sys.argv[1], 0)[1]))"


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


class Carbon:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        conf = self.folder / "conf"
        for each in (conf, self.folder / "log", self.folder / "whisper"):
            each.mkdir(parents=True, exist_ok=True)
        text = CARBON_CONF.format(folder=self.folder, port=self.port, query=free_port())
        (conf / "carbon.conf").write_text(text)
        (conf / "storage-schemas.conf").write_text(SCHEMAS)
        with (self.folder / "carbon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [CARBON, f"--config={conf / 'carbon.conf'}", "--nodaemon", "start"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: listens(self.port), f"carbon: {(self.folder / 'carbon.log').read_text()[-2_000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def file(self, path: str) -> Path:
        return self.folder / "whisper" / f"{path.replace('.', '/')}.wsp"

    def has(self, path: str, value: Any) -> None:
        until(lambda: any(value == each for each in self.values(path)), f"{path} {value}")

    def values(self, path: str) -> list[float]:
        """All that it has kept of a path, read by whisper itself."""
        if not self.file(path).exists():
            return []
        done = subprocess.run(
            ["/usr/bin/python3", "-c", FETCH, str(self.file(path))], capture_output=True, check=True, timeout=30
        )
        return [value for value in json.loads(done.stdout) if value is not None]

    def paths(self) -> list[str]:
        root = self.folder / "whisper"
        return sorted(str(file.relative_to(root).with_suffix("")).replace("/", ".") for file in root.rglob("*.wsp"))


@contextlib.contextmanager
def carbon(folder: Path) -> Iterator[Carbon]:
    made = Carbon(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Collector:
    """An OTLP receiver: what it got, and how it answers."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.gate = threading.Event()
        """Cleared: it takes requests and does not answer."""
        self.gate.set()
        collector = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/metrics"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector.gate.wait(PATIENCE_SECONDS)
                if collector.status == 200:
                    collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                    collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = ExportMetricsServiceResponse().SerializeToString()
                with contextlib.suppress(OSError):
                    self.send_response(collector.status)
                    self.send_header("Content-Type", "application/x-protobuf")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def values(self, name: str) -> list[dict[tuple[tuple[str, str], ...], Any]]:
        """The points of a metric in each request, by their attributes."""
        return [
            {
                tuple((pair.key, pair.value.string_value) for pair in point.attributes): point
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name == name
                for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points
            }
            for request in self.requests
        ]

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()


class Datagrams:
    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        self._socket.bind(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def lines(self) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found += self._socket.recv(65_536).decode("ascii").split("\n")
        return found

    def close(self) -> None:
        self._socket.close()
