"""Notices go out: the task `helen.notify`, by webhook, command or e-mail.

Lives here: telling one notice to one handler, once, within its time. Never here: whether, whom, how often (the machine
and the queue know). Invariants: what is run is only what Helen's own file names, and never by a shell; nothing outlasts
its timeout, whatever the other end does; nothing that was told in confidence (headers, passwords) is in an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from scale0 import __version__
from scale0.config import ClientConfig, HelenConfig, MailServer, Reaction, parse
from scale0.kernel.errors import ConfigError
from scale0.monitoring.helen.edge.notification_command import run_command
from scale0.monitoring.helen.edge.outgoing_connection import OutgoingConnection, dial

NOTIFY: Final = "helen.notify"
GRACE_SECONDS: Final = 0.2
"""How much later than the thread itself we give up: it knows more of why."""
THREADS: Final = 8
"""Webhooks and e-mails under way."""
MAX_TIMEOUT_SECONDS: Final = 3_600.0
MAX_WORDS_CHARS: Final = 500
"""Of what a command says about its failure."""
MAX_SUBJECT_CHARS: Final = 200
PASSWORD_BYTES: Final = 4_096
PORTS: Final = {"http": 80, "https": 443}
SMTP_READY: Final = 220

_to_json: Final = msgspec.json.Encoder().encode


class NotifyParams(msgspec.Struct, frozen=True):
    """The params of the task."""

    handler: str
    notice: dict[str, Any]


class NotificationFailed(Exception):
    """It did not work; `again`: it may the next time."""

    def __init__(self, words: str, again: bool = True) -> None:
        super().__init__(words)
        self.again = again


class Notifier:
    """Tells notices for one Helen."""

    def __init__(self, config: HelenConfig) -> None:
        self._commands: Mapping[str, tuple[str, ...]] = {one.name: tuple(one.command) for one in config.commands}
        self._smtp = config.smtp
        self._handlers: dict[str, Reaction] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="scale0-notify")

    def configure(self, part: bytes) -> None:
        """The handlers of this part of the configuration count from now on; one that cannot be read changes nothing."""
        with contextlib.suppress(ConfigError):
            self._handlers = {one.name: one for one in parse(part, "json", ClientConfig).handlers}

    async def perform(self, params: bytes) -> bytes:
        """One task; what it returns, or NotTold."""
        wanted = read_params(params)
        handler = self._handlers.get(wanted.handler)
        if handler is None:
            raise NotificationFailed(f"there is no handler {wanted.handler[:MAX_WORDS_CHARS]}")
        timeout = min(handler.timeout, MAX_TIMEOUT_SECONDS)
        match handler.type:
            case "webhook":
                told = await self._in_thread(functools.partial(post, handler, wanted.notice, timeout), timeout)
            case "email":
                told = await self._in_thread(
                    functools.partial(mail, self._smtp, handler, wanted.notice, timeout), timeout
                )
            case "command":
                words = self._commands.get(handler.command)
                if words is None:
                    raise NotificationFailed(f"Helen's own file has no command {handler.command}")
                told = await self._in_thread(functools.partial(run, words, wanted.notice, timeout), timeout)
            case _:
                raise NotificationFailed(f"a handler of type {handler.type} is not performed here", again=False)
        return _to_json({"handler": handler.name, "told": told})

    def close(self) -> None:
        """Wait for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, do: Callable[[OutgoingConnection], str], timeout: float) -> str:
        line = OutgoingConnection()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                return await loop.run_in_executor(self._threads, do, line)
        except TimeoutError:
            raise NotificationFailed(f"it took longer than {timeout:g} s") from None
        finally:
            line.end()


def read_params(params: bytes) -> NotifyParams:
    """What is to be told, to whom."""
    try:
        if params.lstrip()[:1] == b"[":
            return msgspec.json.decode(params, type=tuple[NotifyParams])[0]
        return msgspec.json.decode(params, type=NotifyParams)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise NotificationFailed(f"the params are not what they should be: {error}", again=False) from error


def post(handler: Reaction, notice: dict[str, Any], timeout: float, line: OutgoingConnection) -> str:
    """POST the notice as JSON. A redirect is a failure: what was told to one is not told to another."""
    place = urlsplit(handler.url)
    host = place.hostname or ""
    where = f"{place.scheme}://{place.netloc.rpartition('@')[2]}"  # the rest may be a secret
    if place.scheme not in PORTS:
        raise NotificationFailed("its url is neither http nor https", again=False)
    port = place.port or PORTS[place.scheme]
    headers = {"Content-Type": "application/json", "User-Agent": f"scale0/{__version__}", **handler.headers}
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    # It takes the port for what is said in `Host`, and the socket that it is given for the way.
    connection = http.client.HTTPConnection(host, port)
    connection.default_port = PORTS[place.scheme]
    try:
        connection.sock = dial(host, port, place.scheme == "https", timeout, line)
        connection.request("POST", target, _to_json(notice), headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotificationFailed(f"{where}: {type(error).__name__}: {plain(str(error))}") from error
    finally:
        connection.close()
    if not http.HTTPStatus.OK <= status < http.HTTPStatus.MULTIPLE_CHOICES:
        raise NotificationFailed(f"{where} answered {status}")
    return f"{status}"


def mail(
    server: MailServer, handler: Reaction, notice: dict[str, Any], timeout: float, line: OutgoingConnection
) -> str:
    """Send the notice as an e-mail."""
    if not server.host:
        raise NotificationFailed("Helen's own file names no smtp server")
    message = letter(server, handler, notice)
    sender = smtplib.SMTP()
    sender._host = server.host  # type: ignore[attr-defined]  # what STARTTLS holds the certificate against
    try:
        sender.sock = dial(server.host, server.port, server.tls == "tls", timeout, line)
        code, words = sender.getreply()
        if code != SMTP_READY:
            raise NotificationFailed(f"{server.host} answered {code} {plain(words.decode('utf-8', 'replace'))}")
        if server.tls == "starttls":
            sender.starttls(context=ssl.create_default_context())
            line.hold(sender.sock)
        if server.user:
            sender.login(server.user, password_of(server))
        refused = sender.send_message(message)
        sender.quit()
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise NotificationFailed(f"{server.host}: {type(error).__name__}: {plain(str(error))}") from error
    finally:
        sender.close()
    if refused:
        raise NotificationFailed(f"{server.host} did not take it for {', '.join(sorted(refused))}")
    return f"{len(handler.to)} addresses"


def letter(server: MailServer, handler: Reaction, notice: dict[str, Any]) -> EmailMessage:
    """The notice for people: what is wrong in its subject, everything in its text."""
    message = EmailMessage()
    message["From"] = server.sender or f"scale0@{socket.getfqdn()}"
    message["To"] = ", ".join(handler.to)
    message["Subject"] = subject_of(notice)
    message["Auto-Submitted"] = "auto-generated"
    lines = [
        f"{name}: {value if isinstance(value, str) else _to_json(value).decode()}" for name, value in notice.items()
    ]
    message.set_content("\n".join(lines) + "\n")
    return message


def subject_of(notice: dict[str, Any]) -> str:
    """One line: the state, where, and what was said."""
    if notice.get("kind") == "summary":
        return plain(f"{notice.get('dropped')} more notices for {notice.get('handler')}")[:MAX_SUBJECT_CHARS]
    where = f"{notice.get('agent', '')}/{notice.get('check', '')}"
    state = str(notice.get("state", "")).upper()
    return plain(f"{state} {where} {notice.get('message', '')}")[:MAX_SUBJECT_CHARS].strip()


def password_of(server: MailServer) -> str:
    """From its file, each time: it may have changed."""
    with Path(server.password_file).open("rb") as file:
        return file.read(PASSWORD_BYTES).decode().strip()


def plain(text: str) -> str:
    """Text that stays in one line of a header or a log."""
    return "".join(one if one.isprintable() else " " for one in text[:MAX_WORDS_CHARS])


def run(words: tuple[str, ...], notice: dict[str, Any], timeout: float, line: OutgoingConnection) -> str:
    """Run a command of Helen's own file, with the notice on its standard input."""
    try:
        status, said = run_command(words, _to_json(notice), timeout, line.is_ended)
    except TimeoutError:
        raise NotificationFailed(f"{words[0]} took longer than {timeout:g} s") from None
    except OSError as error:
        raise NotificationFailed(f"{words[0]}: {error.strerror or error}") from error
    if status != 0:
        raise NotificationFailed(f"{words[0]} ended with {status}: {plain(said)}".rstrip(": "))
    return "0"
