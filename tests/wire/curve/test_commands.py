"""Two commands put a second machine on the encrypted network; and what they leave behind.

Promise: CURVE-9, CURVE-10, CURVE-11, CURVE-20
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.wire.curve.keys import Lock, locked, new_pair

pytestmark = pytest.mark.processes

WORKER = """
import scale0
worker = scale0.Worker()

@worker.service("hello")
def hello(name):
    return f"hello {name}"
"""
COMMAND_SECONDS = 60


class Machine:
    """Another machine, as far as files go: a home of its own."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SCALE0", "XDG"))},
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

    def run(self, *words: str, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "scale0", *words],
            cwd=self.home,
            env={**self.environment, **more},
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def said(self, *words: str, **more: Any) -> str:
        done = self.run(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A program that stays, once it is ready."""
        with (self.home / "log").open("w+") as log:
            program = subprocess.Popen(
                [sys.executable, "-m", "scale0", *words],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                assert program.stdout is not None
                first = program.stdout.readline()
                log.seek(0)
                assert first.startswith("ready"), log.read()
                yield program
            finally:
                program.terminate()
                program.wait(COMMAND_SECONDS)
                if program.stdout is not None:
                    program.stdout.close()


def place(lock: Lock, socket: str) -> str:
    return lock.broker.endpoints[socket].removeprefix("tcp://")


def data_dir(lock: Lock) -> str:
    return str(lock.folder.parent)


def new_token(admin: Machine, lock: Lock, role: str, *more: str) -> str:
    return admin.said("token", role, "--data-dir", data_dir(lock), *more).strip()


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_two_commands_and_a_task_runs_on_another_machine(tmp_path: Path) -> None:
    with locked(tmp_path / "broker", default_heartbeat_interval=1) as lock:
        admin, other = Machine(tmp_path / "admin"), Machine(tmp_path / "other")
        (other.home / "hello.py").write_text(WORKER)
        token = new_token(admin, lock, "backend")
        words = ("worker", "hello.py", "--join", place(lock, "backend"), "--token", token, "--name", "second")
        with other.running(*words) as worker:
            assert token.encode() not in command_line(worker.pid)
            here = {"SCALE0_DATA_DIR": data_dir(lock)}
            told = admin.said("call", "hello", "world", "--join", place(lock, "frontend"), **here)
            assert told.strip() == "hello world"
            clients = json.loads(admin.said("clients", "--json", "--join", place(lock, "frontend"), **here))
            assert any(row["identity"].startswith("second.") for row in clients)
        # The token is spent, and nobody needs it: the same command works again.
        with other.running(*words):
            pass
        thief = Machine(tmp_path / "thief")
        (thief.home / "hello.py").write_text(WORKER)
        stolen = thief.run(*words)
        assert stolen.returncode == 1
        assert "it was used" in stolen.stderr
        assert token not in stolen.stderr + stolen.stdout
        secrets = [path.read_text().split('secret-key = "')[1][:40] for path in other.home.rglob("*.key_secret")]
        assert len(secrets) == 1
        log = lock.broker.log.read_text()
        assert not any(secret in log for secret in [*secrets, token])


def test_a_frontend_joins_by_token_and_is_known_from_then_on(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin, user = Machine(tmp_path / "admin"), Machine(tmp_path / "user")
        refused = user.run("call", "--join", place(lock, "frontend"))
        assert refused.returncode == 3
        assert "requires a key" in refused.stderr
        made = json.loads(new_token(admin, lock, "frontend", "--json", "--name", "alice"))
        joined = user.run(
            "keys", "join", "frontend", place(lock, "frontend"), "--token", "-", "--name", "alice", stdin=made["token"]
        )
        assert joined.returncode == 0, joined.stderr
        assert user.said("task", "submit", "nobody.does", "--join", place(lock, "frontend")).strip()
        listed = json.loads(admin.said("keys", "list", "--json", "--data-dir", data_dir(lock)))
        assert ("frontend", "alice") in {(row["role"], row["name"]) for row in listed}
        made_by = json.loads(admin.said("audit", "--json", "--command", "enrol", "--data-dir", data_dir(lock)))
        assert [(row["after"]["role"], row["after"]["name"]) for row in made_by] == [("frontend", "alice")]
        assert made_by[0]["who"].startswith("token:frontend/")
        assert admin.run("keys", "revoke", "frontend", "alice", "--data-dir", data_dir(lock)).returncode == 0

        def refused_now() -> bool:
            gone = user.run("call", "--join", place(lock, "frontend"))
            return gone.returncode == 3 and "does not know this key" in gone.stderr

        until(refused_now, seconds=COMMAND_SECONDS)


def test_a_key_file_is_all_that_a_client_needs(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin = Machine(tmp_path / "admin")
        made = admin.said("keys", "new", "frontend", "bob", "--json", "--data-dir", data_dir(lock))
        file = admin.home / json.loads(made)["file"]
        assert file.stat().st_mode & 0o777 == 0o600
        lock.admitted("frontend", pair_in(file))
        assert admin.run("services", "--join", place(lock, "frontend"), "--key-file", str(file)).returncode == 0
        file.chmod(0o644)
        open_file = admin.run("services", "--join", place(lock, "frontend"), "--key-file", str(file))
        assert open_file.returncode == 2
        assert f"chmod 600 {file}" in open_file.stderr
        taken = admin.run("keys", "new", "frontend", "bob", "--out", "other", "--data-dir", data_dir(lock))
        assert taken.returncode == 1
        assert "keys revoke frontend bob" in taken.stderr


def pair_in(file: Path) -> Any:
    from zmq.auth import load_certificate

    from tests.wire.curve.keys import Pair

    public, secret = load_certificate(file)
    assert secret is not None
    return Pair(public, secret)


def test_a_bind_beyond_loopback_without_keys_says_what_mends_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    (machine.home / "open.zpl").write_text("bind = 0.0.0.0\ncurve = false\n")
    refused = machine.run("broker", "--config", "open.zpl")
    assert refused.returncode == 2
    assert "curve = true" in refused.stderr
    assert "scale0 token backend" in refused.stderr


@pytest.mark.parametrize(
    ("path", "mode"),
    [("", 0o755), ("server/server.key_secret", 0o640), ("local/frontend.key_secret", 0o604), ("frontends", 0o777)],
)
def test_a_broker_whose_keys_others_can_reach_does_not_start(tmp_path: Path, path: str, mode: int) -> None:
    with locked(tmp_path / "broker") as lock:
        lock.broker.terminate()
        (lock.folder / path).chmod(mode)
        with pytest.raises(AssertionError, match="chmod"):
            lock.broker.start()


def test_no_secret_is_in_any_log_event_error_or_list_of_processes(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin = Machine(tmp_path / "admin")
        token = new_token(admin, lock, "frontend")
        planted = {
            "server": (lock.folder / "server" / "server.key_secret").read_text().split('secret-key = "')[1][:40],
            "local": (lock.folder / "local" / "frontend.key_secret").read_text().split('secret-key = "')[1][:40],
            "token": token,
            "management": (lock.folder.parent / "token").read_text(),
        }
        here = {"SCALE0_DATA_DIR": data_dir(lock)}
        said = []
        for words in (
            ("status", "--join", place(lock, "frontend"), "--data-dir", data_dir(lock)),
            ("call", "--join", place(lock, "frontend"), "--token", token[:-3]),
            ("call", "--join", place(lock, "backend"), "--token", token),
            ("keys", "list", "--data-dir", data_dir(lock)),
            ("services", "--join", place(lock, "frontend"), "--key-file", "/nonexistent"),
        ):
            done = admin.run(*words, **here)
            said.append(done.stdout + done.stderr)
        raw = lock.raw("frontend", new_pair())
        raw.say("REQUEST", {"service": planted["server"], "id": 1})
        lock.broker.terminate()
        texts = [lock.broker.log.read_bytes().decode(errors="replace"), *said]
        for file in lock.folder.parent.rglob("*"):
            if file.is_file() and file.suffix != ".key_secret" and file.name != "token":
                texts.append(file.read_bytes().decode("latin-1"))
        for what, secret in planted.items():
            assert not any(secret in text for text in texts), what


@pytest.mark.parametrize("command", ["keys", "worker"])
def test_a_name_beside_a_key_of_another_name_is_an_error(tmp_path: Path, command: str) -> None:
    with locked(tmp_path / "broker") as lock:
        admin, user = Machine(tmp_path / "admin"), Machine(tmp_path / "user")
        (user.home / "hello.py").write_text(WORKER)
        address = place(lock, "backend")
        join = ("keys", "join", "backend", address)
        first = user.run(*join, "--token", new_token(admin, lock, "backend"), "--name", "alice")
        assert first.returncode == 0, first.stderr
        [key] = (user.home / ".config/scale0/keys").glob("*_secret")
        before = key.read_bytes()
        words = join if command == "keys" else ("worker", "hello.py", "--join", address)
        refused = user.run(*words, "--token", new_token(admin, lock, "backend"), "--name", "bob")
        assert refused.returncode == 2, refused.stderr
        assert "alice" in refused.stderr
        assert "bob" in refused.stderr
        assert refused.stderr.count(str(key)) >= 2, "the problem and one of the next steps name the file"
        assert "leave out --name" in refused.stderr
        assert key.read_bytes() == before
        # The same name, and none, use the key that is there.
        for name in (("--name", "alice"), ()):
            again = user.run(*join, "--token", new_token(admin, lock, "backend"), *name, "--json")
            assert again.returncode == 0, again.stderr
            assert json.loads(again.stdout)["name"] == "alice"


def test_a_damaged_key_is_named_when_its_owner_joins_again(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin, user = Machine(tmp_path / "admin"), Machine(tmp_path / "user")
        join = ("keys", "join", "frontend", place(lock, "frontend"))
        assert user.run(*join, "--token", new_token(admin, lock, "frontend"), "--name", "alice").returncode == 0
        [key] = (user.home / ".config/scale0/keys").glob("*_secret")
        key.write_text("metadata\n  nonsense")
        refused = user.run(*join, "--token", new_token(admin, lock, "frontend"), "--name", "alice")
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.count(str(key)) >= 2
        key.unlink()
        assert user.run(*join, "--token", new_token(admin, lock, "frontend"), "--name", "alice-2").returncode == 0
