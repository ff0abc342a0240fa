"""A network in which every secret has a value that a test can search for. All processes end with the test."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from scale0.kernel.edge.passwords import hash_password
from tests.fakes.broker_process import PORTS
from tests.fakes.ports import free_port
from tests.fakes.processes import scale0_command
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

GIVEN: Final = {
    "management password": "horse-4f1a-planted",
    "password of the database": "database-77c2-planted",
    "key of the object store": "bucketkey-90ab-planted",
    "key of the object store in the environment": "envkey-31de-planted",
    "session of the object store": "session-5c11-planted",
    "password of the mail server": "mail-8d07-planted",
    "url of a webhook": "hook-2b6e-planted",
    "header of a webhook": "header-c3f8-planted",
}
IN_THE_DOCUMENT: Final = ("url of a webhook", "header of a webhook")
"""They are part of the network document: whoever may read that reads them there, and nowhere else."""
STOP_SECONDS: Final = 30
WORKER: Final = """
import scale0
worker = scale0.Worker()

@worker.service("fails")
def fails() -> None:
    raise RuntimeError("it broke")
"""


class Refusing(socketserver.StreamRequestHandler):
    """A mail server that takes a login and does not believe it."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line.strip().upper()
            if word.startswith(b"EHLO"):
                self.wfile.write(b"250-here\r\n250 AUTH PLAIN LOGIN\r\n")
            elif word.startswith(b"AUTH"):
                self.wfile.write(b"535 no\r\n")
            elif word.startswith(b"QUIT"):
                return
            else:
                self.wfile.write(b"500 what\r\n")


class Planted:
    """The network, and everything that it has printed so far."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.secrets = dict(GIVEN)
        self.outputs: dict[str, str] = {}
        """By where it was printed."""
        self.processes: set[str] = set()
        self.ports = {name: free_port() for name in PORTS}
        self.helen_port, self.console_port = free_port(), free_port()
        self.data = folder / "broker" / "data"
        variables = {
            "HOME": str(folder),
            "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
            "AWS_SECRET_ACCESS_KEY": GIVEN["key of the object store in the environment"],
            "AWS_SESSION_TOKEN": GIVEN["session of the object store"],
            "SCALE0_LOG_LEVEL": "DEBUG",
            "SCALE0_JOIN": f"127.0.0.1:{self.ports['frontend']}",
            "SCALE0_JOIN_BACKEND": f"127.0.0.1:{self.ports['backend']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.shell = Shell(folder, **variables)

    def run(self, *words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """One command to its end; what it says is kept."""
        old = self.shell.environment
        self.shell.environment = {**old, **more}
        try:
            done = self.shell.run(*words, stdin=stdin)
        finally:
            self.shell.environment = old
        self.keep(f"scale0 {words[0]} {len(self.outputs)}", done.stdout + done.stderr)
        return done

    def shows(self, *words: str) -> str:
        """A secret that a command shows on purpose, alone and in what to type next: there it is not kept as output."""
        done = self.shell.run(*words)
        assert done.returncode == 0, done.stderr
        secret = done.stdout.strip()
        self.keep(f"scale0 {words[0]} {len(self.outputs)}", done.stderr.replace(secret, ""))
        return secret

    def keep(self, where: str, text: str) -> None:
        self.outputs[where] = self.outputs.get(where, "") + text

    def look(self) -> None:
        """Note what a list of processes shows now of what was started here."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                self.processes.add("\0".join(process.cmdline()))

    def broker_file(self, **changes: Any) -> Path:
        """A broker's file, with a secret wherever one can be."""
        key = GIVEN["key of the object store"]
        wanted: dict[str, Any] = {
            "identity": "east-1",
            "group": "east",
            "state": "active",
            "curve": True,
            "data_dir": str(self.data),
            "store": self.store(),
            # No server is there: it is tried, and logged, again and again.
            "segments": f"s3://AKIA:{key}@bucket/east?endpoint_override=127.0.0.1:1&scheme=http",
            "segment_seconds": 1.0,
            "config_service": True,
            "management": {"enabled": True, "port": self.console_port},
            "admins": [{"auth_id": "ada", "role": "admin", "password_hash": self.password_hash()}],
            **{f"{name}_port": port for name, port in self.ports.items()},
            **changes,
        }
        path = self.folder / "broker" / "broker.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(wanted))
        path.chmod(0o600)
        return path

    def password_hash(self) -> str:
        if "hash of the password" not in self.secrets:
            self.secrets["hash of the password"] = hash_password(GIVEN["management password"], 1, 65_536)
        return self.secrets["hash of the password"]

    def store(self, host: str = "") -> str:
        """The database's URL; `host`: another, where none is."""
        parts = psycopg.conninfo.conninfo_to_dict(self.database)
        place = host or str(parts["host"]).replace("/", "%2F")
        return f"postgresql://{parts['user']}:{GIVEN['password of the database']}@{place}/{parts['dbname']}"

    @contextlib.contextmanager
    def running(self, name: str, *words: str, form: str = "text", **variables: str) -> Iterator[None]:
        """A program that stays; what it says is kept when it has ended."""
        log = self.folder.parent / f"{self.folder.name}-logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as out:  # a pipe that nobody reads would fill, and stop it
            program = subprocess.Popen(
                scale0_command(*words),
                cwd=self.folder,
                env={**self.shell.environment, "SCALE0_LOG_FORMAT": form, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            until(lambda: program.poll() is not None or b"\nready " in b"\n" + log.read_bytes(), f"{name} is ready")
            self.look()
            yield
            program.terminate()
            assert program.wait(STOP_SECONDS) == 0, log.read_text()[-2_000:]
        except BaseException:
            sys.stderr.write(f"{name}:\n{log.read_text()[-4_000:]}\n")  # pytest shows it with what failed
            raise
        finally:
            if program.poll() is None:
                program.kill()
                program.wait()
            self.keep(f"log of {name} ({form})", log.read_text(errors="replace"))

    def of_files(self) -> None:
        """Every secret key that was made meanwhile."""
        for path in self.folder.rglob("*"):
            if path.suffix == ".key_secret":
                self.secrets[f"secret of {path.name}"] = path.read_text().split('secret-key = "')[1][:40]
            elif path.name.endswith("key.pem"):
                self.secrets[f"secret of {path.name}"] = path.read_text().splitlines()[2]
        self.secrets["local token"] = (self.data / "token").read_text().strip()

    def stored(self) -> None:
        """What lies in the database and in every file, but for those whose purpose it is to hold a secret."""
        with psycopg.connect(self.database) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'scale0'").fetchall()
            for (table,) in tables:
                rows = connection.execute(f"SELECT * FROM scale0.{table}".encode()).fetchall()
                self.keep(f"table {table}", "\n".join(readable(value) for row in rows for value in row))
        for path in self.folder.rglob("*"):
            if path.is_file() and not re.search(HOLDERS, str(path.relative_to(self.folder))):
                self.keep(f"file {path.relative_to(self.folder)}", path.read_bytes().decode("latin-1"))


HOLDERS: Final = (
    r"^broker/broker\.json$|^broker/data/(token|segments\.json|keys/)|^config/|key\.pem$|^mail\.password$"
    r"|^\.config/scale0/keys/|/client/?$"
)
"""Files that are there to hold a secret."""


def readable(value: object) -> str:
    """A column as text, also where it is bytes."""
    return bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)


@contextlib.contextmanager
def mail_server() -> Iterator[int]:
    """Where it listens."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()
