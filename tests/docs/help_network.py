"""The network in which the examples of the command line's help are typed.

web-1   10.0.0.2   `scale0 up`, a worker, the files of `help_home`: examples are typed here
east-1  10.0.0.1   broker.example.com, helen.example.com: a broker that wants keys, and a Helen
web-2   10.0.0.3   a newcomer: no port is taken
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.docs.blocks import Page
from tests.docs.forked import forked
from tests.docs.machines import DONE, Machines, Overdue, Shell, machines
from tests.pipeline import idle_runs, reports_made

HOSTS: Final = ("east-1", "web-1", "web-2")
NAMES: Final = "10.0.0.1 broker.example.com helen.example.com\n10.0.0.2 console.example.com\n"
HOME: Final = Path(__file__).with_name("help_home")
FILES: Final = {
    "cat.png": "no picture, and none is needed\n",
    "secret.txt": "opensesame\n",
    "network.json": '{"network": "scale0", "version": 1}\n',
}
EAST: Final = """identity = east-1
group = east
bind = 10.0.0.1
curve = true
data_dir = var/east-1
"""
PEM: Final = serialization.Encoding.PEM
START_SECONDS: Final = 60.0
EXAMPLE_SECONDS: Final = 200.0
PLACES: Final = ("/var/lib", "/var/log", "/media", "/srv", "/mnt")
"""Folders of the machine that examples write to: each is one of ours."""


class Ended(NamedTuple):
    printed: str
    status: int


class Network:
    """Machines with shells on them in which examples are typed."""

    def __init__(self, at: Machines, folder: Path, tools: Path) -> None:
        self._at = at
        self._folder = folder
        self._tools = tools
        self._known: set[tuple[str, str]] = set()

    def shell(self, host: str, name: str = "examples") -> Shell:
        """A shell with a quick `scale0`, in which the folders of `PLACES` are ours."""
        shell = self._at.shell(host, name)
        if (host, name) not in self._known:
            self._known.add((host, name))
            mounts = [f"mount --bind {self._folder}/places{place} {place}" for place in PLACES]
            east = f"{self._folder}/east-1/var/east-1"
            token = f'token_for() {{ scale0 token "$1" --data-dir {east} 2>/dev/null; }}'
            lines = [*mounts, f"export PATH={self._tools}:$PATH", "set -o pipefail", token]
            printed, status = shell.run(" && ".join(lines))
            assert status == 0, printed
        return shell

    def prepare(self) -> None:
        """Files that examples name."""
        for place in PLACES:
            (self._folder / f"places{place}").mkdir(parents=True)
        with (self._folder / "hosts").open("a", encoding="ascii") as hosts:
            hosts.write(NAMES)
        for host in HOSTS[1:]:
            _furnish(self._at.home(host))
        (self._at.home("east-1") / "east.zpl").write_text(EAST, encoding="ascii")
        (self._at.home("web-1") / "var").symlink_to("../east-1/var")
        (self._folder / "places/var/log/syslog").write_text("all is well\n", encoding="ascii")
        shutil.copy(HOME / "my-plugin", self._folder / "places/srv/my-plugin")  # whoever runs it cannot see our folder
        newcomer = self._at.home("web-2")
        (newcomer / "var").symlink_to("../east-1/var")
        for name, fill in (("tables", reports_made.made), ("quiet", idle_runs.Place)):
            (newcomer / name / ".scale0").mkdir(parents=True)
            fill(newcomer / name / ".scale0")

    def start(self) -> None:
        """Start what runs all the time; the slow ones at the same time."""
        up, broker, web = self.shell("web-1", "up"), self.shell("east-1", "broker"), self.shell("web-1", "web")
        up.type("scale0 up")
        broker.type("scale0 broker --config east.zpl")
        wait_for(broker, "ready ")
        helen = self.shell("east-1", "helen")
        home = "/var/lib/scale0/helen"
        helen.type(
            f"scale0 helen init {home} --name helen.example.com --broker 10.0.0.1 &&"
            f" scale0 helen --config {home}/helen.zpl --token $(scale0 token helen --data-dir var/east-1 2>/dev/null)"
        )
        web.type("python3 web.py console.pem console-key.pem")
        worker = self.shell("web-1", "worker")
        wait_for(up, "Ctrl-C ends it")
        worker.type("NODE=node-2 scale0 worker hello.py:worker")
        wait_for(worker, "ready ")
        wait_for(helen, "ready ")
        wait_for(web, "ready")
        wait_for(up, "Helen monitors this machine")

    def type(self, host: str, lines: str) -> Ended:
        """Type lines in the shell of the examples, so that variables stay."""
        shell = self.shell(host)
        shell.type(lines)
        try:
            printed, status = shell.wait(EXAMPLE_SECONDS)
        except Overdue as overdue:
            self._end(shell)
            return Ended(f"{overdue}\nit does not end: does it stay?", -1)
        return Ended("\n".join(printed), status)

    def stay(self, host: str, line: str, says: str) -> Ended:
        """Type an example that stays, and end it by Ctrl-C once it says this."""
        shell = self.shell(host)
        shell.type(line)
        try:
            shown = shell.read_until(lambda lines: any(says in each or DONE in each for each in lines), EXAMPLE_SECONDS)
            if not shown[-1].startswith(DONE):
                shell.interrupt()
            printed, status = shell.wait(EXAMPLE_SECONDS)
        except Overdue as overdue:
            self._end(shell)
            return Ended(f"{overdue}\nit never says {says!r}, or does not end", -1)
        if not any(says in each for each in printed):
            return Ended("\n".join(printed) + f"\nit never says {says!r}", -1)
        return Ended("\n".join(printed), status)

    def _end(self, shell: Shell) -> None:
        shell.interrupt()
        with contextlib.suppress(Overdue):
            shell.wait(EXAMPLE_SECONDS)


def _furnish(home: Path) -> None:
    shutil.copytree(HOME, home, dirs_exist_ok=True)
    for file, text in FILES.items():
        (home / file).write_text(text, encoding="ascii")
    shutil.copy(home / "east-1.zpl", home / "broker.zpl")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "console.example.com")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (home / "console.pem").write_bytes(certificate.public_bytes(PEM))
    (home / "console-key.pem").touch(mode=0o600)
    (home / "console-key.pem").write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def wait_for(shell: Shell, text: str) -> None:
    lines = shell.read_until(lambda lines: any(text in line or DONE in line for line in lines), START_SECONDS)
    assert any(text in line for line in lines), "\n".join(lines)


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    with machines(Page(HOSTS, "", ()), folder) as at, forked(folder) as tools:
        made = Network(at, folder, tools)
        made.prepare()
        made.start()
        yield made
