"""Small real servers on loopback, and throw-away certificates; every server ends with its `with`."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.registry import BuiltIn, built_in
from scale0.monitoring.protocol.results import CheckFinding

OVER = b"this server ends"


def run(name: str, /, timeout: float = 5.0, **args: Any) -> CheckFinding:
    """One run of a check that has never run before."""
    return again(built_in()[name], timeout, **args)


def again(check: BuiltIn, /, timeout: float = 5.0, **args: Any) -> CheckFinding:
    return check.run(msgspec.json.encode(args), timeout)


def metrics(finding: CheckFinding) -> dict[str, EventMetric]:
    found = {metric.name: metric for metric in finding.metrics}
    assert len(found) == len(finding.metrics), "two metrics have one name"
    return found


@contextmanager
def tcp_server(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that gives every connection to `serve`; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(10)
            try:
                serve(connection)
            except OSError:
                pass  # the other side has gone

    def accept() -> None:
        threads = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break  # it was shut
            threads.append(threading.Thread(target=one, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()


@contextmanager
def udp_server(answers: Callable[[bytes], list[bytes]]) -> Iterator[int]:
    """A server that answers every datagram with some; its port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            data, sender = sock.recvfrom(65_535)
            if data == OVER:
                return
            for answer in answers(data):
                sock.sendto(answer, sender)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        sock.sendto(OVER, sock.getsockname())
        thread.join()
        sock.close()


def hold(connection: socket.socket) -> None:
    """Say nothing until the other side goes."""
    while connection.recv(65_536):
        pass


def page(*answers: bytes, seen: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    """Serve the answers in turn, one on each connection; the last again and again. Requests go into `seen`."""
    waiting = list(answers)

    def serve(connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            data = connection.recv(65_536)
            if not data:
                return
            request += data
        if seen is not None:
            seen.append(request)
        connection.sendall(waiting.pop(0) if len(waiting) > 1 else waiting[0])

    return serve


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """An HTTP answer."""
    lines = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def certificate(folder: Path, days: float, *, host: str = "localhost", begins_days: float = -400.0) -> Path:
    """A certificate that signs itself, with its key, in one file. `days` from now it ends."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Any"), x509.NameAttribute(NameOID.COMMON_NAME, host)]
    )
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins_days))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(names if host == "localhost" else names[:1]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{host}-{days}.pem"
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, plain) + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@contextmanager
def tls_server(pem: Path, serve: Callable[[ssl.SSLSocket], object]) -> Iterator[int]:
    """The same as `tcp_server`, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def shake(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            serve(secured)

    with tcp_server(shake) as port:
        yield port
