"""Networks to measure: each starts its processes, and ends them by their ids."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*command: str, ready: str | None = "ready") -> Iterator[subprocess.Popen[str]]:
    """A process of ours; it is killed at the end, by its id."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    try:
        if ready is not None:
            line = child.stdout.readline() if child.stdout else ""
            if not line.startswith(ready):
                raise RuntimeError(f"{command} did not start: {line!r}")
        yield child
    finally:
        child.kill()
        child.wait()


def end(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.ends", *map(str, words)]


def run_client(*words: object) -> dict[str, float]:
    done = subprocess.run(end(*words), capture_output=True, text=True, cwd=ROOT, check=True, timeout=300)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@contextlib.contextmanager
def scale0_broker(module: str = "scale0", /, **more: object) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A real broker with its store on disk: its front, its back, its process. `more`: its configuration."""
    with tempfile.TemporaryDirectory(prefix="scale0-bench-") as folder:
        ports = {f"{name}_port": free_port() for name in ("frontend", "backend", "peer", "config_pub", "task_pub")}
        config = Path(folder) / "broker.json"
        config.write_text(
            json.dumps({"identity": "bench", "curve": False, "data_dir": f"{folder}/data", **ports, **more})
        )
        with process(sys.executable, "-m", module, "broker", "--config", str(config)) as broker:
            front, back = (f"tcp://127.0.0.1:{ports[name]}" for name in ("frontend_port", "backend_port"))
            yield front, back, broker


@contextlib.contextmanager
def scale0_network() -> Iterator[str]:
    with scale0_broker() as (front, back, _), process(*end("scale0-worker", back)):
        yield front


@contextlib.contextmanager
def scale0_pair() -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Two brokers, a worker at the second: the front of the first, the front of the second, their processes."""
    peer = free_port()
    with (
        scale0_broker(identity="first", peer_port=peer, config_service=True) as (far, _, first),
        scale0_broker(identity="second", state="joining", peers=[f"tcp://127.0.0.1:{peer}"]) as (near, back, second),
        process(*end("scale0-worker", back)),
    ):
        yield far, near, (first.pid, second.pid)


@contextlib.contextmanager
def proxy_network() -> Iterator[str]:
    front, back = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with process(*end("proxy", front, back)), process(*end("proxy-worker", back)):
        yield front


@contextlib.contextmanager
def nats_network() -> Iterator[str]:
    server = shutil.which("nats-server")
    if server is None:
        raise RuntimeError("nats-server is missing: `make bench` installs it from Debian's packages")
    port = free_port()
    with process(server, "-a", "127.0.0.1", "-p", str(port), ready=None):
        wait_for(port)
        with process(*end("nats-worker", f"nats://127.0.0.1:{port}")):
            yield f"nats://127.0.0.1:{port}"


def wait_for(port: int, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on {port}")
