"""What `scale0 up` has watched: a Helen and an agent on this machine, with checks that are useful anywhere.

Lives here: their files, their processes and the first checks. Never here: another way to run them. Invariants: both
listen and connect on loopback only; what an operator has changed in the configuration, or in their files, is left as it
is; when `stop` returns, both are gone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common.child_process import ChildFailed, CommandProcess
from scale0.cli.common.endpoints import DEFAULT_HOST, MAX_PORT

if TYPE_CHECKING:
    from scale0.client.client import Client

HELEN_PORT: Final = 4166
BLOCK: Final = 10
TRIES: Final = 100
TOKEN_MINUTES: Final = 5.0
LOOK_SECONDS: Final = 0.5
"""How often it is looked whether both still run."""
MAX_BACKOFF_SECONDS: Final = 30.0
MAX_NAME_CHARS: Final = 64
"""Of the name in a certificate."""
ANSWER_SECONDS: Final = 5.0
"""What the broker may take to answer."""
FIRST_LOOK_SECONDS: Final = 10.0
"""How long the first results are waited for."""

CHECKS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "cpu", "interval": 60},
    {"name": "disk", "interval": 60},
    {"name": "load", "interval": 60},
    {"name": "memory", "interval": 60},
    {"name": "swap", "interval": 300},
    {"name": "uptime", "interval": 300},
)
"""What a new network watches."""

WHO: Final = {"helen": "Helen", "agent": "the agent"}

Say = Callable[[str], None]


class UpMonitoring:
    """A Helen and an agent beside a broker, looked after by a thread."""

    def __init__(self, folder: Path, identity: str, endpoints: dict[str, str], token_file: Path) -> None:
        self._folder = folder
        self._agent = identity[:MAX_NAME_CHARS]
        self._helen = f"helen-{identity}"[:128]
        self._endpoints = endpoints
        self._token_file = token_file
        self._children: dict[str, CommandProcess] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, said: Say, troubled: Say) -> None:
        """Begin; `said` gets where Helen is each time both have started, `troubled` what went wrong since."""
        self._thread = threading.Thread(target=self._run, args=(said, troubled), name="scale0-up", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End both."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, said: Say, troubled: Say) -> None:
        # All in this one thread: a child does not outlive the thread that started it.
        try:
            if self._begin(said, troubled):
                self._look_after(troubled)
        finally:
            self._stop_children()

    def _begin(self, said: Say, troubled: Say) -> bool:
        """Start both, however often it takes; False: nobody wants it any more."""
        from scale0.kernel.errors import Scale0Error

        told, failures = "", 0
        while not self._ended.is_set():
            try:
                place = self._start_children()
            except (ChildFailed, Scale0Error, OSError) as error:
                if not self._ended.is_set() and str(error) != told:
                    told = str(error)
                    troubled(f"nothing watches this machine: {told}")
                self._stop_children()
                failures += 1
                self._ended.wait(pause(failures))
            else:
                said(place)
                return True
        return False

    def _start_children(self) -> str:
        port = self._prepare()
        self._launch("helen")
        if not self._has_certificate():
            self._enrol(port)
        self._write_agent(port)
        self._launch("agent")
        self._first_look()
        return f"{DEFAULT_HOST}:{port}"

    def _stop_children(self) -> None:
        """The agent first."""
        for name in ("agent", "helen"):
            child = self._children.pop(name, None)
            if child is not None:
                child.stop()

    def _prepare(self) -> int:
        """Certificates, Helen's file, and the port that she gets."""
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
        """One that still holds, and the name in it; who was away for long enrols anew."""
        from scale0.kernel.errors import ConfigError
        from scale0.monitoring.agent.edge.certificate import read_certificate

        try:
            found = read_certificate(self._folder / "agent" / "agent.pem")
        except ConfigError:
            return False
        self._agent = found.identity
        return found.not_after > time.time()

    def _enrol(self, port: int) -> None:
        """As on any other machine: a token, and a certificate for it."""
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
        """A file as it is; nothing, if it is not ours to understand."""
        try:
            found = json.loads((self._folder / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, ours: dict[str, Any]) -> None:
        """A file: places and ports follow us; what else stands there is the operator's."""
        path = self._folder / f"{name}.json"
        text = json.dumps({**self._kept(name), **ours}, indent=2)
        path.touch(mode=0o600)
        path.write_text(f"{text}\n")

    def _launch(self, name: str) -> None:
        if self._ended.is_set():
            raise ChildFailed("stopped")
        from scale0.kernel.edge.log_setup import LEVEL_VARIABLE

        words = [name, "--config", str(self._folder / f"{name}.json")]
        child = CommandProcess(
            name, words, self._folder, {LEVEL_VARIABLE: "INFO"}
        )  # its log is a file, not our terminal
        self._children[name] = child
        child.ready(self._ended)

    def _first_look(self) -> None:
        """The first checks, once, while nobody has said what to watch; and each of them now, not in a minute."""
        from scale0.client.client import Client
        from scale0.kernel.edge.secret_files import read_secret

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
            until = time.monotonic() + FIRST_LOOK_SECONDS
            self._wait_for_agent(net, until)
            for name in defined:
                if not self._run_now(net, name, until):
                    raise ChildFailed("the agent has not answered")

    def _wait_for_agent(self, net: Client, until: float) -> None:
        """Until Helen has it: checks of who has not come yet would be the first failures that anybody sees."""
        from scale0.client import payload
        from scale0.errors import CallError

        while time.monotonic() < until and not self._ended.is_set():
            with contextlib.suppress(CallError):
                answer = net.request(f"helen.{self._helen}.agents", payload.encode({}))
                if any(row["agent"] == self._agent for row in payload.decode(answer[0])["items"]):
                    return
            self._ended.wait(LOOK_SECONDS / 5)

    def _run_now(self, net: Client, name: str, until: float) -> bool:
        """Have it run at once; Helen may not know of it yet, or the agent not have come yet."""
        from scale0.client import payload
        from scale0.errors import CallError

        body = payload.encode({"agent": self._agent, "check": name, "recheck": True})
        while time.monotonic() < until and not self._ended.is_set():
            try:
                net.request(f"helen.{self._helen}.check", body)
            except CallError:
                self._ended.wait(LOOK_SECONDS / 5)
            else:
                return True
        return False

    def _look_after(self, troubled: Say) -> None:
        """Start again what has died, with longer and longer pauses while that does not help."""
        failures = dict.fromkeys(self._children, 0)
        begun = dict.fromkeys(self._children, time.monotonic())
        while not self._ended.wait(LOOK_SECONDS):
            for name, child in list(self._children.items()):
                how, lived = child.ending(), time.monotonic() - begun[name]
                if not how:
                    continue
                failures[name] = 0 if lived > MAX_BACKOFF_SECONDS else failures[name] + 1
                troubled(f"{WHO[name]} {how}, and is started again")
                if self._ended.wait(pause(failures[name])):
                    return
                begun[name] = time.monotonic()
                try:
                    self._launch(name)
                except (ChildFailed, OSError):
                    continue


def pause(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(MAX_BACKOFF_SECONDS, LOOK_SECONDS * 2.0 ** min(failures, 10))


def free_port(wanted: object = None) -> int:
    """The port that Helen had, or her own one, or the next that is free."""
    ports = list(range(HELEN_PORT, HELEN_PORT + BLOCK * TRIES, BLOCK))
    if isinstance(wanted, int) and 0 < wanted <= MAX_PORT:
        ports.insert(0, wanted)
    for port in ports:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((DEFAULT_HOST, port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port was found for Helen from {HELEN_PORT} on")
