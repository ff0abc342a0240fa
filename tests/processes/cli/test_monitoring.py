"""`scale0 up` and what it watches, as somebody would type it: agents, checks, incidents, handlers, silences."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from scale0.cli.main import main
from scale0.history.segments.exporter import RESTART_POLICY
from tests.fakes.ports import free_port
from tests.fakes.processes import Background
from tests.fakes.shell import VARIABLES, Shell
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

FIRST = {"cpu", "disk", "load", "memory", "swap", "uptime"}
CLOSED_PORT = 1
"""Nobody listens there."""


class Network:
    """`scale0 up` in a folder, and a shell beside it."""

    def __init__(self, shell: Shell, up: Background) -> None:
        self.shell = shell
        self.up = up
        self.folder = shell.folder / ".scale0"

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.up.process.pid)
        # Every broker has a child that writes segments.
        return [child for child in own.children(recursive=True) if RESTART_POLICY.module not in child.cmdline()]

    def running(self, word: str) -> list[psutil.Process]:
        """Those whose command line has this word; one that ends meanwhile has none."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each for each in self.processes() if word in " ".join(each.cmdline())]
        return []

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """What a reading command shows, whatever its exit status."""
        found: list[dict[str, Any]] = json.loads(self.shell.run(*words, "--json").stdout or "[]")
        return found


def free_block() -> int:
    """The first of five ports that are free, and that the system gives to no connection meanwhile."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + 5):
                trial = held.enter_context(socket.socket())
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("127.0.0.1", port))
            return first


@contextlib.contextmanager
def network(folder: Path, *words: str) -> Iterator[Network]:
    port = free_block()
    shell = Shell(folder, SCALE0_JOIN=f"127.0.0.1:{port}", SCALE0_JOIN_BACKEND=f"127.0.0.1:{port + 1}")
    with shell.background("up", "--port", str(port), *words) as up:
        up.wait_for("Ctrl-C ends it." if "--bare" in words else "scale0 checks\n")
        yield Network(shell, up)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("up"), "--identity", "vm") as running:
        yield running


class CommandResult(NamedTuple):
    status: int
    out: str
    err: str


TypeCommand = Callable[[str], CommandResult]


@pytest.fixture
def typed(net: Network, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> TypeCommand:
    """Commands in this process: the same as in a shell, and much quicker."""
    monkeypatch.chdir(net.shell.folder)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("SCALE0_JOIN", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, net.shell.environment[name])

    def run(words: str) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["scale0", *words.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return CommandResult(int(end.value.code or 0), *capsys.readouterr())

    return run


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=0.05)[1]


def test_up_has_this_machine_watched_at_once(net):
    [agent] = net.shell.json("agents")
    assert (agent["agent"], agent["state"], agent["helen"]) == ("vm", "connected", "helen-vm")
    rows = net.rows("checks")
    assert {row["check"] for row in rows} == FIRST
    assert all(row["agent"] == "vm" and not row["stale"] for row in rows)
    assert {row["name"] for row in net.shell.json("check", "list")} == FIRST


def test_a_check_runs_now_as_it_is_defined_or_as_it_is_asked(net):
    before = net.rows("checks", "--check", "uptime")[0]["at"]
    done = net.shell.run("check", "run", "vm", "uptime")
    assert done.returncode == 0
    assert re.match(r"ok: up .*\(0\.\d+ s\)\n\nMETRIC +VALUE +UNIT +MIN\nuptime_seconds ", done.stdout)
    counted = net.rows("checks", "--check", "uptime")[0]["at"]
    assert counted > before
    asked = net.shell.run("check", "run", "vm", "uptime", "--arg", "warn=0:1", "--json")
    assert asked.returncode == 1
    assert json.loads(asked.stdout)["state"] == "warning"
    assert net.rows("checks", "--check", "uptime")[0]["at"] == counted, "a mere question changes no state"
    assert set(net.shell.json("check", "run", "vm")) > FIRST


def audited(typed: TypeCommand, net: Network) -> list[dict[str, Any]]:
    """The checks that were run; refused ones are recorded as well."""
    found: list[dict[str, Any]] = json.loads(typed(f"audit --command run_check --json --data-dir {net.folder}").out)
    return [one for one in found if one["code"] == 200]


def test_who_ran_a_check_is_known_if_it_was_by_a_right_and_nobody_needs_one(typed, net, tmp_path, monkeypatch):
    # Promise: MGMT-6
    before = len(audited(typed, net))
    assert typed("check run vm uptime --arg warn=0.0123:").status == 0
    [one] = audited(typed, net)[before:]
    assert (one["who"], one["code"]) == ("local", 200)
    assert one["after"] == {"agent": "vm", "check": "uptime", "args": ["warn"]}
    assert one["origin"].startswith("frontend/")
    assert "0.0123" not in json.dumps(one["after"]), "a value may be a secret"
    token = json.loads(typed("access issue eve --role viewer --json").out)["token"]
    monkeypatch.chdir(tmp_path)
    assert typed("check run vm uptime").status == 0
    (tmp_path / ".scale0").mkdir(mode=0o700)
    (tmp_path / ".scale0" / "token").write_text("s0_of-another-broker")
    (tmp_path / ".scale0" / "token").chmod(0o600)
    assert typed("check run vm uptime").status == 0, "a token that lies there by chance is passed over"
    assert len(audited(typed, net)) == before + 1
    with monkeypatch.context() as given:
        given.setenv("SCALE0_TOKEN", token)
        refused = typed("check run vm uptime")
    assert (refused.status, refused.out) == (1, "")
    assert "run_check needs the role operator" in refused.err
    monkeypatch.setenv("SCALE0_DATA_DIR", str(tmp_path / ".scale0"))
    named = typed("check run vm uptime")
    assert named.status == 1
    assert "the token is unknown or has expired" in named.err
    monkeypatch.setenv("SCALE0_DATA_DIR", str(net.folder))
    assert typed("check run vm uptime").status == 0
    assert [one["after"] for one in audited(typed, net)[before + 1 :]] == [{"agent": "vm", "check": "uptime"}]


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        ("check run nobody load", 1, "agent nobody is not connected\n  next: `scale0 agents`"),
        ("check run nobody", 1, "no Helen knows agent nobody\n  next: `scale0 agents`"),
        ("check run vm load --arg x", 2, "--arg takes KEY=VALUE"),
        ("check add a/b", 1, "nothing was changed: "),
        ("check add x --handler none", 1, "there is no handler none\n  next: see `scale0 check list` and"),
        ("check change nosuch --interval 5", 1, "there is no check nosuch\n  next: `scale0 check list`"),
        ("check change load", 2, "give at least one option"),
        ("check remove no]such", 1, "there is no check no]such\n  next: list them with `scale0 check list`"),
        ("handler add x", 2, "give exactly one of --webhook URL"),
        ("handler test nosuch", 1, "there is no handler nosuch\n  next: `scale0 handler list`"),
        ("silence add", 2, "give --agent GLOB"),
        ("silence end", 2, "give the name of the silence to end"),
        ("silence end nosuch", 1, "there is no silence nosuch\n  next: list them with `scale0 silence list`"),
        ("downtime add --agent vm --from 2020-05-01T22:00 --for 4h", 2, "already be over"),
        (
            "agent forget vm --data-dir .scale0/monitoring/helen",
            1,
            "agent vm is connected to helen-vm\n  next: stop it first",
        ),
        ("agent forget nosuch --data-dir .scale0/monitoring/helen", 1, "does not know agent nosuch"),
    ],
)
def test_what_cannot_be_says_why_and_what_to_do(typed, words, status, expected):
    found = typed(words)
    assert (found.status, found.out) == (status, "")
    assert expected in found.err


def test_empty_tables_teach(typed):
    for words, expected in (
        ("checks --agent nosuch", "`scale0 checks` lists all"),
        ("incidents --agent nosuch", "`scale0 incidents --all` lists the closed ones"),
        ("handler list", "scale0 handler add pager --webhook"),
        ("silence list", "scale0 silence add --agent"),
        ("downtime list", "scale0 downtime add --agent"),
    ):
        found = typed(words)
        assert (found.status, found.err) == (0, ""), words
        assert expected in found.out, words


@contextlib.contextmanager
def page() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook: its URL, and the notices that it received."""
    notices: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notices.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", notices
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_a_problem_is_shown_notified_silenced_and_over(net):
    shell = net.shell
    with page() as (url, notices):
        assert shell.run("handler", "add", "pager", "--webhook", url).returncode == 0
        assert shell.run("handler", "test", "pager").returncode == 0
        assert [each["kind"] for each in notices] == ["test"]

        where = ["--arg", "host=127.0.0.1", "--arg", f"port={CLOSED_PORT}"]
        rest = ["--interval", "0.2", "--max-attempts", "1", "--handler", "pager"]
        assert shell.run("check", "add", "po.rt", "--check", "tcp", *where, *rest).returncode == 0
        assert until(
            lambda: [row for row in net.rows("checks", "--problems", "--check", "po.rt") if row["hard"]],
            "it is critical",
        )
        shown = shell.run("checks")
        assert shown.returncode == 1
        assert re.search(r"^vm +po\.rt +critical +[\d.]+ s ago  127\.0\.0\.1:1: ", shown.stdout, re.MULTILINE)
        order = [
            ("critical", "unknown", "warning", "ok").index(line.split()[2]) for line in shown.stdout.splitlines()[1:]
        ]
        assert order == sorted(order), "the worst is first; a busy machine may have others"
        assert all(len(line) <= 80 for line in shown.stdout.splitlines())
        open_now = shell.run("incidents", "--check", "po.*")
        assert (open_now.returncode, "  open  " in open_now.stdout) == (1, True)
        assert until(lambda: [each["check"] for each in notices if each["kind"] == "problem"], "it is told")

        silenced = shell.run("silence", "add", "--check", "po.*", "--for", "1h").stdout
        name = re.match(r"(silence-\w+)", silenced)
        assert name
        assert until(lambda: "critical (silenced)" in shell.run("checks").stdout, "it is silenced")
        assert re.search(r" all +po\.\* +60 min left", shell.run("silence", "list").stdout)
        assert shell.run("silence", "end", name[1]).returncode == 0

        assert shell.run("handler", "remove", "pager").returncode == 1, "a check names it"
        assert shell.run("check", "change", "po.rt", "--handler", "", "--disabled").returncode == 0
        assert shell.run("handler", "remove", "pager").returncode == 0
    [row] = [row for row in shell.json("check", "list") if row["name"] == "po.rt"]
    assert (row["handlers"], row["enabled"], row["interval"]) == ([], False, 0.2)
    assert shell.run("check", "remove", "po.rt").returncode == 0
    assert until(lambda: not net.rows("incidents", "--check", "po.rt"), "the incident is closed")
    [was] = net.rows("incidents", "--all", "--check", "po.rt")
    assert (was["worst"], was["closed"] is not None) == ("critical", True)


@pytest.mark.slow
def test_a_downtime_ends_and_is_taken_away(net):
    shell = net.shell
    add = ("downtime", "add", "--agent", "nosuch")
    assert shell.run(*add, "--for", "1", "--name", "short").returncode == 0
    assert shell.run(*add, "--from", "2100-01-01T00:00", "--for", "4h", "--name", "far").returncode == 0
    listing = ("downtime", "list")
    shown = until(
        lambda: re.search(r"^short .* over ", out := shell.run(*listing).stdout, re.MULTILINE) and out, "it ends"
    )
    assert re.search(r"^far +nosuch +all +2100-01-01 00:00:00, 4 h +-$", shown, re.MULTILINE)
    assert shell.run("downtime", "end", "--over").returncode == 0
    assert [row["name"] for row in shell.json("downtime", "list")] == ["far"]
    assert shell.run("downtime", "end", "far").returncode == 0


@pytest.mark.slow
def test_up_again_keeps_agents_and_configuration_and_ends_all_it_started(tmp_path):
    with network(tmp_path, "--identity", "vm") as first:
        assert first.shell.run("check", "remove", "swap").returncode == 0
        started = first.processes()
        assert len(started) >= 3, "Helen, stage0 and the agent"
        first.up.signal(signal.SIGINT)
        assert first.up.wait() == 0
        assert first.up.output.endswith("stopped\n")
        assert gone(started)
    file = tmp_path / ".scale0" / "monitoring" / "agent.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "labels": {"role": "test"}}))
    assert file.stat().st_mode & 0o077 == 0
    with network(tmp_path, "--identity", "vm") as second:
        assert {row["check"] for row in second.rows("checks")} == FIRST - {"swap"}
        assert [row["labels"] for row in second.rows("agents")] == [{"role": "test"}]
        started = second.processes()
        second.up.signal(signal.SIGKILL)
        second.up.wait()
        assert until(lambda: gone(started), "nobody outlives up, even by kill -9")


@pytest.mark.slow
def test_a_bare_network_says_how_to_have_it_watched(tmp_path):
    with network(tmp_path, "--bare") as net:
        for words in ("checks", "check run vm load"):
            done = net.shell.run(*words.split())
            assert (done.returncode, done.stdout) == (1, "")
            assert "no Helen is connected\n  next: `scale0 up`" in done.stderr
        assert "scale0 check add disks" in net.shell.run("check", "list").stdout
        assert not net.processes()
        net.up.signal(signal.SIGTERM)
        assert net.up.wait() == 0


def test_an_agents_own_checks_can_be_tried_without_a_network(tmp_path):
    shell = Shell(tmp_path)
    checks = tmp_path / "checks"
    checks.mkdir(mode=0o755)
    (checks / "hello.lua").write_text(
        'return function(args) return {state = args.state or "ok", metrics = {{name = "n", value = 2}}} end'
    )
    config = {
        "helen": ["127.0.0.1"],
        **dict.fromkeys(("certificate", "private_key", "server_ca"), "missing.pem"),
        "checks_dir": str(checks),
        "data_dir": str(tmp_path / "data"),
        "plugins": [{"name": "told", "command": "/bin/echo FINE {what=all}"}],
    }
    (tmp_path / "agent.json").write_text(json.dumps(config))
    lua = shell.run("check", "test", "hello", "--config", "agent.json")
    assert (lua.returncode, lua.stdout.splitlines()[-1].split()) == (0, ["n", "2"])
    bad = shell.run("check", "test", "hello", "--config", "agent.json", "--arg", "state=critical", "--json")
    assert (bad.returncode, json.loads(bad.stdout)["state"]) == (1, "critical")
    plugin = shell.run("check", "test", "told", "--config", "agent.json", "--arg", "what=well")
    assert plugin.stdout.startswith("ok: FINE well")
    kinds = {row["name"]: row["kind"] for row in shell.json("check", "test", "--config", "agent.json")}
    assert (kinds["hello"], kinds["told"], kinds["load"]) == ("Lua", "plugin", "built-in")
    assert "there is no check hallo\n  next: did you mean hello?" in shell.refuses(
        "check", "test", "hallo", "--config", "agent.json", status=2
    )
    (checks / "load.lua").touch()
    assert "load is a built-in check" in shell.run("check", "test", "hello", "--config", "agent.json").stderr
    assert not (tmp_path / "data").exists()


def test_a_check_that_hangs_is_not_waited_for_longer_than_was_said(net):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"url=http://127.0.0.1:{silent.getsockname()[1]}/"
        done = net.shell.run("check", "run", "vm", "http", "--arg", url, "--timeout", "0.5")
    assert done.returncode == 1
    assert "vm did not answer within 0.5 s\n  next: allow more" in done.stderr


@pytest.mark.slow
def test_who_dies_is_started_again_and_who_watches_sees_it(net):
    with net.shell.background("agents", "--watch", "--json") as watching:
        watching.wait_for('"connected"')
        [helen] = net.running("scale0 helen")
        helen.kill()
        net.up.wait_for("Helen was killed by signal 9; restarting it")
        seen = len(watching.wait_until(lambda: '"away"' in watching.output or "next:" in watching.output))
        watching.wait_until(lambda: '"connected"' in watching.output[seen:])
    [stage0] = net.running("stage0")
    stage0.kill()
    net.up.wait_for("the agent was killed by signal 9; restarting it")
    assert until(lambda: [row["state"] for row in net.rows("agents")] == ["connected"], "the agent is back")
    assert {each.pid for each in (helen, stage0)}.isdisjoint(each.pid for each in net.processes())
