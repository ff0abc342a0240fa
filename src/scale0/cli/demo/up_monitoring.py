"""Monitoring for `scale0 up` and `scale0 demo`: a Helen and an agent, with checks that are useful on any machine.

Both listen and connect on loopback only. What an operator has changed in the configuration or in their files stays.
When `stop` returns, both processes have ended.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common.child_process import ChildFailed, CommandProcess
from scale0.cli.common.endpoints import DEFAULT_HOST, HELEN_PORT, MAX_PORT, is_free
from scale0.kernel.backoff import Backoff
from scale0.kernel.edge.secret_files import read_secret
from scale0.kernel.errors import ConfigError, Scale0Error

if TYPE_CHECKING:
    from scale0.client.client import Client

BLOCK: Final = 10
"""From one try for free ports to the next."""
TRIES: Final = 100
TOKEN_MINUTES: Final = 5.0
POLL_SECONDS: Final = 0.5
"""Between two checks that both processes still run."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_NAME_CHARS: Final = 64
"""Of the name in a certificate."""
ANSWER_SECONDS: Final = 5.0
FIRST_RESULTS_SECONDS: Final = 10.0

CHECKS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "cpu", "interval": 60},
    {"name": "disk", "interval": 60},
    {"name": "load", "interval": 60},
    {"name": "memory", "interval": 60},
    {"name": "swap", "interval": 300},
    {"name": "uptime", "interval": 300},
)
"""The checks of a new network."""

NAMES: Final = {"helen": "Helen", "agent": "the agent"}

Notify = Callable[[str], None]


class UpMonitoring:
    """A Helen and an agent beside a broker; a thread starts and restarts them."""

    def __init__(self, folder: Path, identity: str, endpoints: dict[str, str], token_file: Path) -> None:
        self._folder = folder
        self._agent = identity[:MAX_NAME_CHARS]
        self._helen = f"helen-{identity}"[:128]
        self._endpoints = endpoints
        self._token_file = token_file
        self._children: dict[str, CommandProcess] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ready: Notify, failed: Notify) -> None:
        """Call `ready` with Helen's address once both have started, and `failed` with each problem."""
        self._thread = threading.Thread(target=self._run, args=(ready, failed), name="scale0-up", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, ready: Notify, failed: Notify) -> None:
        # All in this one thread: a child ends with the thread that started it.
        try:
            if self._begin(ready, failed):
                self._supervise(failed)
        finally:
            self._stop_children()

    def _begin(self, ready: Notify, failed: Notify) -> bool:
        """Try to start both until it works; False: `stop` was called before."""
        reported, backoff = "", Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while not self._ended.is_set():
            try:
                address = self._start_children()
            except (ChildFailed, Scale0Error, OSError) as error:
                if not self._ended.is_set() and str(error) != reported:
                    reported = str(error)
                    failed(f"this machine is not monitored: {reported}")
                self._stop_children()
                self._ended.wait(backoff.next())
            else:
                ready(address)
                return True
        return False

    def _start_children(self) -> str:
        port = self._prepare()
        self._launch("helen")
        if not self._has_certificate():
            self._enrol(port)
        self._write_agent(port)
        self._launch("agent")
        self._run_first_checks()
        return f"{DEFAULT_HOST}:{port}"

    def _stop_children(self) -> None:
        """The agent first."""
        for name in ("agent", "helen"):
            child = self._children.pop(name, None)
            if child is not None:
                child.stop()

    def _prepare(self) -> int:
        """Write the certificates and Helen's configuration file; returns her port."""
        from scale0.monitoring.pki.authority import (
            AGENTS_CA_FILE,
            CA_FILE,
            HELEN_FILE,
            HELEN_KEY_FILE,
            create_authority,
        )

        home = self._folder / "helen"
        if not (home / CA_FILE).exists():
            create_authority(home, ("localhost", DEFAULT_HOST), time.time())
        port = free_port(self._kept("helen").get("helen_port"))
        ours = {
            "identity": self._helen,
            "broker": self._endpoints["backend"],
            "helen_port": port,
            "certificate": str(home / HELEN_FILE),
            "private_key": str(home / HELEN_KEY_FILE),
            "client_ca": str(home / AGENTS_CA_FILE),
            "data_dir": str(home),
        }
        self._write("helen", ours)
        return port

    def _has_certificate(self) -> bool:
        """True if the agent's certificate is valid; its name is used. Otherwise the agent must enrol again."""
        from scale0.monitoring.agent.edge.certificate import read_certificate

        try:
            found = read_certificate(self._folder / "agent" / "agent.pem")
        except ConfigError:
            return False
        self._agent = found.identity
        return found.not_after > time.time()

    def _enrol(self, port: int) -> None:
        from scale0.monitoring.pki.authority import CertificateAuthority
        from scale0.monitoring.pki.enrolment import EnrolmentEndpoint, enrol

        token = CertificateAuthority(self._folder / "helen").make_token(time.time(), TOKEN_MINUTES, self._agent)
        enrol(EnrolmentEndpoint(DEFAULT_HOST, port), token, self._agent, self._folder / "agent", replace=True)

    def _write_agent(self, port: int) -> None:
        home = self._folder / "agent"
        ours = {
            "helen": [f"{DEFAULT_HOST}:{port}"],
            "certificate": str(home / "agent.pem"),
            "private_key": str(home / "agent-key.pem"),
            "server_ca": str(home / "ca.pem"),
            "checks_dir": str(home / "checks"),
            "data_dir": str(home / "data"),
        }
        self._write("agent", ours)

    def _kept(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self._folder / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, ours: dict[str, Any]) -> None:
        """Update our settings in a configuration file; the operator's other settings stay."""
        path = self._folder / f"{name}.json"
        text = json.dumps({**self._kept(name), **ours}, indent=2)
        path.touch(mode=0o600)
        path.write_text(f"{text}\n")

    def _launch(self, name: str) -> None:
        if self._ended.is_set():
            raise ChildFailed("stopped")
        from scale0.kernel.edge.log_setup import LEVEL_VARIABLE

        words = [name, "--config", str(self._folder / f"{name}.json")]
        child = CommandProcess(words, {LEVEL_VARIABLE: "INFO"}, name=name, log_dir=self._folder)
        self._children[name] = child
        child.ready(self._ended)

    def _run_first_checks(self) -> None:
        """Define the first checks in a new network, and run each of them at once."""
        from scale0.client.client import Client

        token = read_secret(self._token_file)
        if token is None:
            return
        with Client(self._endpoints["frontend"], timeout=ANSWER_SECONDS, patience=ANSWER_SECONDS) as net:
            found = net.manage("get_config", auth_token=token)
            if found["version"] == 1 and not found["config"]["checks"]:
                found = net.manage("patch_config", set={"checks": list(CHECKS)}, auth_token=token)
                defined = [check["name"] for check in CHECKS]
            else:
                ours = {check["name"] for check in CHECKS}
                defined = [check["name"] for check in found["config"]["checks"] if check["name"] in ours]
            until = time.monotonic() + FIRST_RESULTS_SECONDS
            self._wait_for_agent(net, until)
            for name in defined:
                if not self._run_now(net, name, until):
                    raise ChildFailed("the agent did not answer")

    def _wait_for_agent(self, net: Client, until: float) -> None:
        """Until it is connected to Helen: otherwise its checks would first be shown as failed."""
        from scale0.client import payload
        from scale0.errors import CallError

        while time.monotonic() < until and not self._ended.is_set():
            with contextlib.suppress(CallError):
                answer = net.request(f"helen.{self._helen}.agents", payload.encode({}))
                if any(row["agent"] == self._agent for row in payload.decode(answer[0])["items"]):
                    return
            self._ended.wait(POLL_SECONDS / 5)

    def _run_now(self, net: Client, name: str, until: float) -> bool:
        """Run a check now; retries while Helen does not know the check or the agent is not connected."""
        from scale0.client import payload
        from scale0.errors import CallError

        body = payload.encode({"agent": self._agent, "check": name, "recheck": True})
        while time.monotonic() < until and not self._ended.is_set():
            try:
                net.request(f"helen.{self._helen}.check", body)
            except CallError:
                self._ended.wait(POLL_SECONDS / 5)
            else:
                return True
        return False

    def _supervise(self, failed: Notify) -> None:
        """Restart a process that has ended, with exponential backoff."""
        backoffs = {name: Backoff(POLL_SECONDS, MAX_BACKOFF_SECONDS) for name in self._children}
        begun = dict.fromkeys(self._children, time.monotonic())
        while not self._ended.wait(POLL_SECONDS):
            for name, child in list(self._children.items()):
                how, lived = child.ending(), time.monotonic() - begun[name]
                if not how:
                    continue
                if lived > MAX_BACKOFF_SECONDS:
                    backoffs[name].reset()
                failed(f"{NAMES[name]} {how}; restarting it")
                if self._ended.wait(backoffs[name].next()):
                    return
                begun[name] = time.monotonic()
                try:
                    self._launch(name)
                except (ChildFailed, OSError):
                    continue


def free_port(wanted: object = None) -> int:
    """The port that Helen had before, or her default port, or the next free one."""
    ports = list(range(HELEN_PORT, HELEN_PORT + BLOCK * TRIES, BLOCK))
    if isinstance(wanted, int) and 0 < wanted <= MAX_PORT:
        ports.insert(0, wanted)
    for port in ports:
        if is_free(port):
            return port
    raise OSError(f"no free port was found for Helen from {HELEN_PORT} on")
