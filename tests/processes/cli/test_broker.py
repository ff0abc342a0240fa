"""`scale0 broker`, `up`, `status` and management: a broker's life, typed."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3

import pytest

from scale0.kernel.edge.passwords import verify_password
from scale0.storage.sqlite.schema import APPLICATION_ID, STORE_VERSION
from tests.fakes.broker_process import ANY_PORTS, broker_process
from tests.fakes.shell import Shell, shell_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes


def test_a_broker_from_flags_says_ready_serves_and_stops_in_order(tmp_path):
    shell = Shell(tmp_path)
    flags = ["--identity", "east-1", "--group", "east", "--service", "a", "--service", "b", "--data-dir", "var"]
    with shell.background("broker", *flags, *ANY_PORTS) as running:
        line = re.search(r"^ready east-1 .*$", running.wait_for("task_pub="), re.MULTILINE)
        assert line
        places = dict(word.split("=", 1) for word in line[0].split() if "=" in word)
        status = shell.json("status", "--join", places["frontend"], "--data-dir", "var")
        assert (status["broker"], status["group"], status["state"]) == ("east-1", "east", "active")
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_a_flag_wins_over_the_file(tmp_path):
    shell = Shell(tmp_path)
    (tmp_path / "b.zpl").write_text("identity = from-file\ndata_dir = one\n")
    with shell.background("broker", "--config", "b.zpl", "--identity", "from-flag", *ANY_PORTS) as running:
        running.wait_for("ready from-flag ")
        assert (tmp_path / "one" / "token").exists()


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("--identity", "not an identity"), 2, "identity"),
        (("--frontend-port", "70000"), 2, "70000"),
        (("--config", "missing.zpl"), 2, "missing.zpl: No such file"),
        (("--config", "wrong.zpl"), 2, "line 2"),
        (("--config", "wrong.yaml"), 2, "ends in none of"),
        (("--data-dir", "wrong.zpl"), 1, "is not a directory"),
    ],
)
def test_a_broker_that_cannot_start_says_why(tmp_path, words, status, expected):
    (tmp_path / "wrong.zpl").write_text("identity = a\nfrontend_prt = 1\n")
    (tmp_path / "wrong.yaml").touch()
    done = Shell(tmp_path).run("broker", *ANY_PORTS, *words)
    assert done.returncode == status
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = Shell(tmp_path).run("broker", *ANY_PORTS, "--backend-port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_a_folder_in_use_is_refused_by_name(broker, tmp_path):
    assert f"in use by process {broker.pid}" in Shell(tmp_path).refuses(
        "broker", *ANY_PORTS, "--data-dir", broker.config["data_dir"]
    )


def exported(shell: Shell, output: str) -> None:
    """Do what `up` says one should type in other shells, where ports were taken."""
    found = re.search(r"export (SCALE0_JOIN)=(\S+) (SCALE0_JOIN_BACKEND)=(\S+)", output)
    if found:
        shell.environment |= {found[1]: found[2], found[3]: found[4]}


# Promise: CLI-6
def test_up_starts_a_network_and_what_it_prints_works(tmp_path):
    shell = Shell(tmp_path)
    with shell.background("up") as running:
        output = running.wait_for("Ctrl-C ends it.")
        exported(shell, output)
        until(lambda: "helen.check" in shell.run("call").stdout, "Helen is there")
        status = shell.json("status")
        assert status["state"] == "active"
        assert status["endpoints"]["frontend"] in output
        assert status["requests"] is not None, "the token in .scale0 was used"
        assert (tmp_path / ".scale0" / ".gitignore").read_text() == "*\n"
        assert (tmp_path / ".scale0").stat().st_mode & 0o077 == 0
        for words in ("worker", "call", "task submit", "checks", "status", "top", "pipeline run", "report"):
            assert f"\n    scale0 {words} " in output
        assert "The console is at http://127.0.0.1:" in running.wait_for("and this link opens it, once:")
        # Another program may try the standard ports meanwhile: what is logged about it is no text of `up`.
        lines = [line for line in running.output.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
        assert [line for line in lines if len(line) > 80 and "http" not in line and "/" not in line] == []

        error = Shell(tmp_path).refuses("up")
        assert "in use by process" in error
        assert "next: it already runs: see `scale0 status`" in error

        running.signal(signal.SIGINT)
        assert running.wait() == 0
        assert running.output.endswith("stopped\n")


def test_up_takes_the_next_free_ports_and_says_so(tmp_path):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 5700))
            other.listen()
        except OSError:
            pass  # somebody else has it: just as good
        shell = Shell(tmp_path)
        with shell.background("up", "--bare") as running:
            output = running.wait_for("Ctrl-C ends it.")
            assert "is in use: using 57" in output
            assert "export SCALE0_JOIN=127.0.0.1:57" in output
            exported(shell, output)
            assert shell.run("call").stdout.startswith("There is no service yet.")


# Promise: CLI-6
def test_up_says_what_to_type_when_a_port_that_was_asked_for_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = Shell(tmp_path).run("up", "--bare", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"a port from {port} to {port + 4} is in use" in done.stderr
    assert "next: choose another --port, or leave it out" in done.stderr
    assert not (tmp_path / ".scale0").exists()


# Promise: CLI-6
def test_up_says_what_to_type_when_its_folder_is_of_another_version(tmp_path):
    store = sqlite3.connect(tmp_path / "scale0.db")
    store.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    store.execute("CREATE TABLE migrations (version INTEGER)")
    store.execute("INSERT INTO migrations VALUES (?)", (STORE_VERSION + 1,))
    store.commit()
    store.close()
    before = (tmp_path / "scale0.db").read_bytes()
    error = Shell(tmp_path).refuses("up", "--bare", "--data-dir", str(tmp_path))
    assert f"has version {STORE_VERSION + 1}, this program supports {STORE_VERSION}" in error
    assert "next: pip install --upgrade scale0, or use another folder with --data-dir FOLDER" in error
    assert (tmp_path / "scale0.db").read_bytes() == before


@pytest.mark.parametrize("folder", ["/proc/scale0", "a-file/data"])
def test_up_says_what_to_type_when_its_folder_cannot_be_written(tmp_path, folder):
    (tmp_path / "a-file").write_text("in the way")
    done = Shell(tmp_path).run("up", "--bare", "--data-dir", folder)
    assert done.returncode == 1, done.stderr
    assert folder in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert f"next: use another folder with --data-dir FOLDER; `scale0 doctor --data-dir {folder}`" in done.stderr


def test_status_without_a_right_shows_what_anybody_may_know(shell):
    done = shell.run("status")
    assert done.returncode == 0
    assert re.search(r"^state +active$", done.stdout, re.MULTILINE)
    assert "--data-dir" in done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_status_as_json_has_the_same_keys_with_and_without_a_right(shell, manager):
    partly, fully = shell.json("status"), manager.json("status")
    keys = {
        *("broker", "version", "state", "draining", "group", "time", "uptime", "config_version", "config_hash"),
        *("heartbeat_interval", "connections", "clients", "services", "requests", "error_clients", "counters"),
        *("tasks", "endpoints", "standby_for", "full", "outage", "clock_suspect", "findings"),
    }
    assert set(partly) == keys
    assert set(fully) >= keys
    assert partly["uptime"] is None
    assert fully["uptime"] > 0
    assert set(fully["requests"]) == {"waiting", "under_way", "answered", "failed"}


@pytest.mark.slow
def test_a_broker_is_drained_disabled_and_enabled(manager, shell):
    try:
        assert manager.run("drain").stdout.startswith("broker-1 is draining")
        assert manager.run("status").returncode == 1
        done = manager.run("disable", "broker-1", "--json")
        assert json.loads(done.stdout) == {"broker": "broker-1", "state": "disabled", "draining": False}
        assert manager.run("status").returncode == 1
        assert shell.run("status").returncode == 3
    finally:
        assert manager.run("enable").stdout.startswith("broker-1 is active")
    assert manager.run("status").returncode == 0


def test_a_command_for_another_broker_is_not_given(manager):
    assert "is broker-1, not broker-2" in manager.refuses("disable", "broker-2")
    assert manager.run("status").returncode == 0


def test_reload_says_what_changed(manager, broker):
    manager.run("reload")
    assert "nothing changed" in manager.run("reload").stdout
    written = json.loads(broker.file.read_text())
    broker.file.write_text(json.dumps({**written, "request_timeout": 12}))
    assert manager.json("reload") == {"broker": "broker-1", "changed": ["request_timeout"]}
    broker.file.write_text(json.dumps({**written, "request_timeout": "soon"}))
    error = manager.refuses("reload")
    assert "nothing was reloaded: " in error
    assert "request_timeout" in error
    broker.file.write_text(json.dumps(written))


def test_without_a_token_management_is_wrong_usage_that_says_how(shell):
    for words in (("disable",), ("config", "show"), ("config", "history")):
        assert "--auth-id" in shell.refuses(*words, status=2)


def test_a_wrong_token_is_a_no(shell):
    assert "(401 wrong credentials)" in shell.refuses("drain", "--token", "-", stdin="s0_wrong")


@pytest.mark.slow
def test_a_password_from_the_command_line_lets_an_admin_in(tmp_path):
    shell = Shell(tmp_path)
    made = shell.run("password", stdin="open sesame\n")
    assert made.returncode == 0
    password_hash = made.stdout.strip()
    assert password_hash.startswith("$argon2id$")
    assert verify_password(password_hash, "open sesame")
    admins = [{"auth_id": "ann", "password_hash": password_hash, "role": "operator"}]
    with broker_process(tmp_path / "broker", admins=admins) as broker:
        right = shell_of(broker, tmp_path, SCALE0_PASSWORD="open sesame")
        assert right.run("drain", "--auth-id", "ann").returncode == 0
        assert right.run("enable", "--auth-id", "ann").returncode == 0
        wrong = shell_of(broker, tmp_path, SCALE0_PASSWORD="open barley").run("drain", "--auth-id", "ann")
        assert wrong.returncode == 1
        assert "barley" not in wrong.stdout + wrong.stderr


def test_an_empty_password_is_refused(tmp_path):
    assert Shell(tmp_path).run("password", stdin="\n").returncode == 2
