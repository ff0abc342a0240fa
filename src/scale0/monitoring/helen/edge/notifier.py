"""Delivers notifications by webhook, command or e-mail: for the task `helen.notify`, or directly.

Only commands of Helen's own configuration file are run, without a shell. A delivery ends at its timeout, whatever the
other side does. No error contains a secret (headers, passwords, paths of URLs).
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
from scale0.config import ClientConfig, HelenConfig, MailServer, NotificationHandler
from scale0.config.secret_references import secret_name
from scale0.kernel.edge.secret_files import SecretDirectory, SecretUnavailable
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, has_slow_numbers
from scale0.monitoring.helen.core.notifications import MAX_DELIVERIES
from scale0.monitoring.helen.edge.network_backend import MAX_PERFORMED
from scale0.monitoring.helen.edge.notification_command import run_command

NOTIFY: Final = "helen.notify"
GRACE_SECONDS: Final = 0.2
"""The event loop gives up this much later than the thread, whose error says more."""
THREADS: Final = MAX_PERFORMED + MAX_DELIVERIES
"""Concurrent webhooks, commands and e-mails: a delivery must not wait for a thread, because its time runs."""
MAX_TIMEOUT_SECONDS: Final = 3_600.0
MAX_REASON_CHARS: Final = 500
"""Of a command's stderr in an error."""
MAX_SUBJECT_CHARS: Final = 200
PASSWORD_BYTES: Final = 4_096
CONNECT_SECONDS: Final = 10.0
"""The maximum for establishing a connection: `end` cannot interrupt that wait."""
PORTS: Final = {"http": 80, "https": 443}
SMTP_READY: Final = 220

_to_json: Final = msgspec.json.Encoder().encode


class NotifyParams(msgspec.Struct, frozen=True):
    handler: str
    notice: dict[str, Any]
    """The notification, in plain values."""


class NotificationFailed(Exception):
    """A delivery failed; `again`: another attempt may succeed."""

    def __init__(self, reason: str, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class OutgoingConnection:
    """A connection of a delivery thread that the event loop can end: `end` makes each wait on it return soon."""

    __slots__ = ("_ended", "_socket")

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ended = False

    def hold(self, found: socket.socket) -> None:
        self._socket = found
        if self._ended:
            self.end()

    def is_ended(self) -> bool:
        """True if nobody waits for the result."""
        return self._ended

    def end(self) -> None:
        self._ended = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # The method of the plain socket: that of SSLSocket would release what the other thread is using.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Notifier:
    def __init__(self, config: HelenConfig) -> None:
        self._commands: Mapping[str, tuple[str, ...]] = {entry.name: tuple(entry.command) for entry in config.commands}
        self._smtp = config.smtp
        self._secrets = SecretDirectory(Path(config.secrets_dir or Path(config.data_dir) / "secrets"))
        self._handlers: dict[str, NotificationHandler] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="scale0-notify")

    def configure(self, config: ClientConfig) -> None:
        """Use the handlers of this configuration from now on."""
        self._handlers = {handler.name: handler for handler in config.handlers}

    async def perform(self, params: bytes) -> bytes:
        """Run one task; returns its result, or raises NotificationFailed."""
        wanted = read_params(params)
        handler = self._handlers.get(wanted.handler)
        if handler is None:
            raise NotificationFailed(f"unknown handler {wanted.handler[:MAX_REASON_CHARS]}")
        return _to_json({"handler": handler.name, "told": await self.deliver(handler, wanted.notice)})

    async def deliver(self, handler: NotificationHandler, notice: dict[str, Any]) -> str:
        """Deliver a notification; returns what the other side answered, or raises NotificationFailed."""
        timeout = min(handler.timeout, MAX_TIMEOUT_SECONDS)
        match handler.type:
            case "webhook":
                return await self._in_thread(functools.partial(self._post, handler, notice, timeout), timeout)
            case "email":
                return await self._in_thread(functools.partial(mail, self._smtp, handler, notice, timeout), timeout)
            case "command":
                command = self._commands.get(handler.command)
                if command is None:
                    raise NotificationFailed(f"Helen's configuration file defines no command {handler.command}")
                return await self._in_thread(functools.partial(run, command, notice, timeout), timeout)
            case _:
                raise NotificationFailed(f"a handler of type {handler.type} is not delivered by Helen", again=False)

    def _post(
        self, handler: NotificationHandler, notice: dict[str, Any], timeout: float, connection: OutgoingConnection
    ) -> str:
        """Read the files that the handler refers to, and post."""
        try:
            url = self._value_of(handler.url)
            headers = {name: self._value_of(value) for name, value in handler.headers.items()}
        except SecretUnavailable as error:
            raise NotificationFailed(str(error)) from None
        shown = "" if url == handler.url else handler.url
        secret = (url, headers) != (handler.url, handler.headers)
        filled = msgspec.structs.replace(handler, url=url, headers=headers)
        return post(filled, notice, timeout, connection, shown, secret)

    def _value_of(self, text: str) -> str:
        name = secret_name(text)
        return text if name is None else self._secrets.read(name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, do: Callable[[OutgoingConnection], str], timeout: float) -> str:
        connection = OutgoingConnection()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                return await loop.run_in_executor(self._threads, do, connection)
        except TimeoutError:
            raise NotificationFailed(f"the delivery took longer than {timeout:g} s") from None
        finally:
            connection.end()


def read_params(params: bytes) -> NotifyParams:
    if has_slow_numbers(params, MAX_BODY_EXPONENTS):
        reason = f"invalid params: more than {MAX_BODY_EXPONENTS} numbers with an exponent"
        raise NotificationFailed(reason, again=False)
    try:
        if params.lstrip()[:1] == b"[":
            return msgspec.json.decode(params, type=tuple[NotifyParams])[0]
        return msgspec.json.decode(params, type=NotifyParams)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise NotificationFailed(f"invalid params: {error}", again=False) from error


def post(
    handler: NotificationHandler,
    notification: dict[str, Any],
    timeout: float,
    connection: OutgoingConnection,
    reference: str = "",
    secret: bool = False,
) -> str:
    """POST the notification as JSON. A redirect is an error: the data must not go to another server. With a
    `reference`, errors show it in place of the URL; if the URL or a header is `secret`, they show no details."""
    try:
        url = urlsplit(handler.url)
        port = url.port or PORTS[url.scheme]
    except (ValueError, KeyError):
        raise NotificationFailed(f"{reference or 'the URL'} is no http or https URL", again=bool(reference)) from None
    host = url.hostname or ""
    origin = reference or f"{url.scheme}://{url.netloc.rpartition('@')[2]}"  # the rest may contain a secret
    headers = {"Content-Type": "application/json", "User-Agent": f"scale0/{__version__}", **handler.headers}
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    try:
        # The port is for the Host header; the connection itself is made below.
        with contextlib.closing(http.client.HTTPConnection(host, port)) as client:
            client.default_port = PORTS[url.scheme]
            client.sock = dial(host, port, url.scheme == "https", timeout, connection)
            client.request("POST", target, _to_json(notification), headers)
            status = client.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The texts of other errors may contain the host, the path or a header.
        why = f": {one_line(str(error))}" if isinstance(error, OSError) and not secret else ""
        raise NotificationFailed(f"{origin}: {type(error).__name__}{why}") from (None if secret else error)
    if not http.HTTPStatus.OK <= status < http.HTTPStatus.MULTIPLE_CHOICES:
        raise NotificationFailed(f"{origin} answered {status}")
    return f"{status}"


def mail(
    server: MailServer,
    handler: NotificationHandler,
    notification: dict[str, Any],
    timeout: float,
    connection: OutgoingConnection,
) -> str:
    if not server.host:
        raise NotificationFailed("Helen's configuration file names no SMTP server")
    message = make_email(server, handler, notification)
    sender = smtplib.SMTP()
    sender._host = server.host  # type: ignore[attr-defined]  # STARTTLS checks the certificate against it
    try:
        sender.sock = dial(server.host, server.port, server.tls == "tls", timeout, connection)
        code, reason = sender.getreply()
        if code != SMTP_READY:
            raise NotificationFailed(f"{server.host} answered {code} {one_line(reason.decode('utf-8', 'replace'))}")
        if server.tls == "starttls":
            sender.starttls(context=ssl.create_default_context())
            connection.hold(sender.sock)
        if server.user:
            sender.login(server.user, password_of(server))
        refused = sender.send_message(message)
        sender.quit()
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise NotificationFailed(f"{server.host}: {type(error).__name__}: {one_line(str(error))}") from error
    finally:
        sender.close()
    if refused:
        raise NotificationFailed(f"{server.host} refused the recipients {', '.join(sorted(refused))}")
    return f"{len(handler.to)} addresses"


def make_email(server: MailServer, handler: NotificationHandler, notification: dict[str, Any]) -> EmailMessage:
    message = EmailMessage()
    message["From"] = server.sender or f"scale0@{socket.getfqdn()}"
    message["To"] = ", ".join(handler.to)
    message["Subject"] = subject_of(notification)
    message["Auto-Submitted"] = "auto-generated"
    lines = [
        f"{name}: {value if isinstance(value, str) else _to_json(value).decode()}"
        for name, value in notification.items()
    ]
    message.set_content("\n".join(lines) + "\n")
    return message


def subject_of(notification: dict[str, Any]) -> str:
    if notification.get("kind") == "summary":
        return one_line(f"{notification.get('dropped')} more notifications for {notification.get('handler')}")[
            :MAX_SUBJECT_CHARS
        ]
    origin = f"{notification.get('agent', '')}/{notification.get('check', '')}"
    state = str(notification.get("state", "")).upper()
    return one_line(f"{state} {origin} {notification.get('message', '')}")[:MAX_SUBJECT_CHARS].strip()


def password_of(server: MailServer) -> str:
    """Read for each e-mail: it may have changed."""
    with Path(server.password_file).open("rb") as file:
        return file.read(PASSWORD_BYTES).decode().strip()


def one_line(text: str) -> str:
    """Replace what cannot be printed, so that the text stays on one line of a header or a log."""
    return "".join(char if char.isprintable() else " " for char in text[:MAX_REASON_CHARS])


def run(command: tuple[str, ...], notification: dict[str, Any], timeout: float, connection: OutgoingConnection) -> str:
    try:
        status, stderr = run_command(command, _to_json(notification), timeout, connection.is_ended)
    except TimeoutError:
        raise NotificationFailed(f"{command[0]} took longer than {timeout:g} s") from None
    except OSError as error:
        raise NotificationFailed(f"{command[0]}: {error.strerror or error}") from error
    if status != 0:
        raise NotificationFailed(f"{command[0]} exited with status {status}: {one_line(stderr)}".rstrip(": "))
    return "0"


def dial(host: str, port: int, tls: bool, timeout: float, connection: OutgoingConnection) -> socket.socket:
    """Connect, with TLS if wanted; raises OSError."""
    raw = socket.create_connection((host, port), timeout=min(timeout, CONNECT_SECONDS))
    connection.hold(raw)
    raw.settimeout(timeout)
    return wrap_tls(raw, host, connection) if tls else raw


def wrap_tls(raw: socket.socket, host: str, connection: OutgoingConnection) -> ssl.SSLSocket:
    """Add TLS; the certificate must be valid for this host."""
    try:
        wrapped = ssl.create_default_context().wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        raw.close()
        raise
    connection.hold(wrapped)
    try:
        wrapped.do_handshake()
    except BaseException:
        wrapped.close()
        raise
    return wrapped
