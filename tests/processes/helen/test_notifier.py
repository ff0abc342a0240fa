"""Delivery of notifications: webhooks, commands and e-mail against real sockets and processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scale0.config import ClientConfig, HelenConfig, MailServer, NoticeCommand, NotificationHandler
from scale0.monitoring.helen.edge.notifier import NotificationFailed, Notifier, subject_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes

NOTICE = {"kind": "problem", "agent": "web-1", "check": "disk", "state": "critical", "message": "full\nvery"}


def deliver(handler: NotificationHandler, notice: dict[str, Any] = NOTICE, **own: Any) -> dict[str, Any]:
    """Tell it, as the task does."""
    config = HelenConfig(identity="h", certificate="c", private_key="k", client_ca="a", **own)
    notifier = Notifier(config)
    notifier.configure(ClientConfig(handlers=(handler,)))
    params = json.dumps({"handler": handler.name, "notice": notice}).encode()
    try:
        failure: dict[str, Any] = json.loads(asyncio.run(notifier.perform(params)))
        return failure
    finally:
        notifier.close()


class Hook(BaseHTTPRequestHandler):
    """Keeps what it gets, and answers by its path."""

    got: ClassVar[list[tuple[str, Any, dict[str, str]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, json.loads(body), dict(self.headers)))
        if self.path == "/slow":
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"H")
                    time.sleep(0.05)
            return
        self.send_response({"/no": 500, "/elsewhere": 302}.get(self.path, 204))
        if self.path == "/elsewhere":
            self.send_header("Location", "/yes")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hook() -> Iterator[Callable[..., NotificationHandler]]:
    Hook.got.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    with serving(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield lambda path, **more: NotificationHandler(name="hook", type="webhook", url=url + path, **more)


def test_webhook_gets_the_notice_as_json(hook: Callable[..., NotificationHandler]) -> None:
    assert deliver(hook("/yes?a=b", headers={"X-Key": "secret"})) == {"handler": "hook", "told": "204"}
    [(path, body, headers)] = Hook.got
    assert (path, body) == ("/yes?a=b", NOTICE)
    assert (headers["X-Key"], headers["Content-Type"]) == ("secret", "application/json")


@pytest.mark.parametrize(("path", "words"), [("/no", "500"), ("/elsewhere", "302")])
def test_webhook_that_does_not_say_yes_is_tried_again(
    hook: Callable[..., NotificationHandler], path: str, words: str
) -> None:
    with pytest.raises(NotificationFailed, match=words) as failure:
        deliver(hook(path, headers={"X-Key": "secret"}))
    assert failure.value.again
    assert "secret" not in str(failure.value)
    assert len(Hook.got) == 1


# Promise: CHECK-14
def test_webhook_that_drips_is_cut_at_its_timeout(hook: Callable[..., NotificationHandler]) -> None:
    began = time.monotonic()
    with pytest.raises(NotificationFailed, match="longer than"):
        deliver(hook("/slow", timeout=0.3))
    assert time.monotonic() - began < 3.0


def test_webhook_that_nobody_serves_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NotificationFailed, match=f"^http://127.0.0.1:{port}: .*refused"):
        deliver(NotificationHandler(name="hook", type="webhook", url=f"http://127.0.0.1:{port}/secret"))


COMMAND = NotificationHandler(name="run", type="command", command="page")


def page(*words: str) -> dict[str, Any]:
    return {"commands": (NoticeCommand(name="page", command=words),)}


def test_command_gets_the_notice_on_its_standard_input(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    failure = deliver(
        COMMAND, **page(sys.executable, "-c", f"import sys; open({str(kept)!r}, 'w').write(sys.stdin.read())")
    )
    assert failure == {"handler": "run", "told": "0"}
    assert json.loads(kept.read_text()) == NOTICE


# Promise: CHECK-14
def test_command_that_helen_does_not_know_is_not_run() -> None:
    with pytest.raises(NotificationFailed, match="no command page"):
        deliver(COMMAND)


def test_command_that_fails_says_why() -> None:
    with pytest.raises(NotificationFailed, match="exited with status 3: no bell") as failure:
        deliver(COMMAND, **page(sys.executable, "-c", "import sys; sys.stderr.write('no bell' * 9_999); sys.exit(3)"))
    assert len(str(failure.value)) < 1_000
    with pytest.raises(NotificationFailed, match="No such file"):
        deliver(COMMAND, **page("/nonexistent/bell"))


# Promise: CHECK-14
@pytest.mark.parametrize("waits", [True, False])
def test_nothing_that_a_command_started_outlasts_it(tmp_path: Path, waits: bool) -> None:
    kept = tmp_path / "pid"
    child = f"import os, time; open({str(kept)!r} + '.new', 'w').write(str(os.getpid())); "
    child += f"os.rename({str(kept)!r} + '.new', {str(kept)!r}); time.sleep(60)"
    parent = f"import os, subprocess, time; subprocess.Popen([{sys.executable!r}, '-c', {child!r}])\n"
    parent += f"while not os.path.exists({str(kept)!r}): time.sleep(0.01)\n"
    handler = NotificationHandler(name="run", type="command", command="page", timeout=1.5 if waits else 30.0)
    began = time.monotonic()
    if waits:
        with pytest.raises(NotificationFailed, match="longer than"):
            deliver(handler, **page(sys.executable, "-c", parent + "time.sleep(60)"))
    else:
        deliver(handler, **page(sys.executable, "-c", parent))
    assert time.monotonic() - began < 10.0
    pid = int(kept.read_text())
    until(lambda: is_gone(pid))


def is_gone(pid: int) -> bool:
    """True if no such process runs; one that nobody has buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class MailHandler(socketserver.StreamRequestHandler):
    """As much of a mail server as one letter needs."""

    mails: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 post\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += self.rfile.readline()
                self.mails.append(text.decode())
            elif word == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 ok\r\n")


def test_mail_is_a_letter_that_says_what_is_wrong() -> None:
    MailHandler.mails.clear()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), MailHandler)
    with serving(server):
        smtp = MailServer(host="127.0.0.1", port=server.server_address[1], sender="helen@example.org", tls="off")
        handler = NotificationHandler(name="mail", type="email", to=("one@example.org", "two@example.org"))
        assert deliver(handler, smtp=smtp) == {"handler": "mail", "told": "2 addresses"}
    [mail] = MailHandler.mails
    assert "Subject: CRITICAL web-1/disk full very" in mail
    assert "To: one@example.org, two@example.org" in mail
    assert "From: helen@example.org" in mail


def test_mail_needs_a_server_that_speaks() -> None:
    handler = NotificationHandler(name="mail", type="email", to=("one@example.org",), timeout=0.5)
    with pytest.raises(NotificationFailed, match="names no SMTP server"):
        deliver(handler)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        smtp = MailServer(host="127.0.0.1", port=silent.getsockname()[1], tls="off")
        began = time.monotonic()
        with pytest.raises(NotificationFailed, match=r"longer than|timed out"):
            deliver(handler, smtp=smtp)
        assert time.monotonic() - began < 5.0


# Promise: CHECK-14
def test_subject_is_one_line_whatever_an_agent_said() -> None:
    notice = {**NOTICE, "message": "a\r\nBcc: everybody@example.org\x00" + "x" * 999}
    assert subject_of(notice).startswith("CRITICAL web-1/disk a  Bcc: everybody@example.org x")
    assert len(subject_of(notice)) <= 200
    assert subject_of({"kind": "summary", "handler": "mail", "dropped": 7}) == "7 more notifications for mail"


@pytest.mark.parametrize("params", [b"", b"[]", b"{}", b"[" * 100_000, b'{"handler": 1, "notice": {}}', b"\xff"])
def test_params_that_are_none_are_never_tried_again(params: bytes) -> None:
    notifier = Notifier(HelenConfig(identity="h", certificate="c", private_key="k", client_ca="a"))
    with pytest.raises(NotificationFailed) as failure:
        asyncio.run(notifier.perform(params))
    assert not failure.value.again
    notifier.close()


# Promise: CHECK-19
def test_webhook_gets_its_address_and_headers_from_files(
    hook: Callable[..., NotificationHandler], tmp_path: Path
) -> None:
    for name, content in (("address", hook("/yes").url), ("token", "Bearer 5")):
        (tmp_path / name).write_text(content + "\n")
        (tmp_path / name).chmod(0o600)
    handler = NotificationHandler(
        name="hook", type="webhook", url="secret:address", headers={"Authorization": "secret:token"}
    )
    assert deliver(handler, secrets_dir=str(tmp_path)) == {"handler": "hook", "told": "204"}
    ((path, _, headers),) = Hook.got
    assert (path, headers["Authorization"]) == ("/yes", "Bearer 5")
