"""The parsers of foreign bytes: a name, the function of bytes that is tried, and the errors that it may raise.

A function raises nothing but its declared errors, whatever the bytes are, and ends within the limits of
`fuzz.harness`. Some also check that what was accepted has the same meaning when it is written and read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from msgspec import MsgspecError
from nacl.bindings import crypto_scalarmult_base

from scale0.compat.majordomo import frames as majordomo
from scale0.compat.titanic import services as titanic
from scale0.config import AgentConfig, BrokerConfig, HelenConfig, NetworkDocument, formats, key_paths
from scale0.config.schema import ClientConfig
from scale0.history.events import journal
from scale0.history.segments import arrow, names
from scale0.http import validation
from scale0.http.events.event_index import InvalidCursor, parse_cursor
from scale0.http.problem import ApiProblem
from scale0.kernel import time_text
from scale0.kernel.errors import ConfigError, Refusal, Scale0Error, StoreError
from scale0.kernel.limits import Limits
from scale0.kernel.machine import Sent
from scale0.monitoring.agent.core import plugin_command
from scale0.monitoring.agent.core.session import parse_address
from scale0.monitoring.agent.edge import lua_connection
from scale0.monitoring.checks import certificates, dns_message, ntp, perfdata
from scale0.monitoring.checks.check_run import CheckFailed
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.helen.core import check_state, deduplication, incidents, services, socket_events
from scale0.monitoring.helen.edge import notifier
from scale0.monitoring.pki import certificates as pki
from scale0.monitoring.pki import tokens
from scale0.monitoring.protocol import results
from scale0.monitoring.protocol.parser import ParsedItem, Parser
from scale0.tasks.core import native_protocol, node_reports
from scale0.tasks.jsonrpc import client_methods, messages, node_methods
from scale0.tasks.node import messages as node_messages
from scale0.transport.core import codec, zmtp, zmtp_curve
from scale0.transport.core.command_table import client_codec
from scale0.transport.edge import curve_certificates, joining
from tests.fakes import zmtp_bytes
from tests.fakes.broker import FakeBroker

LIMITS: Final = Limits()
SECRET: Final = bytes(range(32))
SEGMENT: Final = names.Segment("east-1", 7, 1, 3)
QUESTION: Final = dns_message.encode_question(4_660, "scale0.test", "A")
MARK: Final = 81_985_529_216_486_895
NOW_US: Final = 1_900_000_000_000_000
MAX_FRAME_BYTES: Final = 65_536
SCHEMAS: Final = (NetworkDocument, BrokerConfig, HelenConfig, AgentConfig, ClientConfig)


class Target(NamedTuple):
    """One parser."""

    name: str
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()


class Broken(Exception):
    """A parser returned something that its promise excludes."""


def pieces(data: bytes) -> Iterator[bytes]:
    """The bytes as they could arrive: the first one says how they are cut."""
    size = data[0] + 1 if data else 1
    rest = data[1:]
    if size > 200:
        yield rest
        return
    for at in range(0, len(rest), size):
        yield rest[at : at + size]


def zmtp_null(data: bytes, socket_type: bytes = zmtp.ROUTER) -> None:
    session = zmtp.ZmtpSession(socket_type, zmtp.NullMechanism(socket_type), MAX_FRAME_BYTES, LIMITS.max_parts)
    for piece in pieces(data):
        for message in session.receive(piece):
            if len(message) > LIMITS.max_parts or sum(map(len, message)) > 2 * MAX_FRAME_BYTES:
                raise Broken("a message exceeds the limits")
            session.encode(message)


def zmtp_subscriber(data: bytes) -> None:
    zmtp_null(data, zmtp.XPUB)


def zmtp_encrypted(data: bytes) -> None:
    mechanism = zmtp_curve.CurveServer((SECRET,), zmtp.ROUTER, lambda _public, _server: "", bytes)
    session = zmtp.ZmtpSession(zmtp.ROUTER, mechanism, MAX_FRAME_BYTES, LIMITS.max_parts)
    session.receive(zmtp_bytes.greeting(b"CURVE"))
    for piece in pieces(data):
        session.receive(piece)


def zmtp_client(data: bytes) -> None:
    """What a server sends to our connecting end."""
    mechanism = zmtp.NullMechanism(zmtp.DEALER, is_client=True)
    session = zmtp.ZmtpSession(zmtp.DEALER, mechanism, MAX_FRAME_BYTES, LIMITS.max_parts, as_server=False)
    for piece in pieces(data):
        for message in session.receive(piece):
            if len(message) > LIMITS.max_parts or sum(map(len, message)) > 2 * MAX_FRAME_BYTES:
                raise Broken("a message exceeds the limits")


def curve_client() -> zmtp.ZmtpSession:
    """Without randomness: what a server answered once is an answer again."""
    public = crypto_scalarmult_base(SECRET)
    mechanism = zmtp_curve.CurveClient(public, SECRET, public, zmtp.DEALER, bytes)
    return zmtp.ZmtpSession(zmtp.DEALER, mechanism, MAX_FRAME_BYTES, LIMITS.max_parts, as_server=False)


def zmtp_curve_client(data: bytes) -> None:
    session = curve_client()
    for piece in pieces(data):
        session.receive(piece)


def wire_messages(data: bytes) -> list[list[bytes]]:
    """The messages in frames of ZMTP, after a complete handshake."""
    session = zmtp.ZmtpSession(zmtp.ROUTER, zmtp.NullMechanism(zmtp.ROUTER), MAX_FRAME_BYTES, LIMITS.max_parts)
    session.receive(zmtp_bytes.greeting() + zmtp_bytes.ready())
    return session.receive(data)


class FuzzedBroker(FakeBroker):
    """Reads only answers of SCALE0/1: the others are for the stranger."""

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        return super()._send(peer, frames) if codec.MAGIC in frames[:2] else "sent"


def broker_socket(socket: str) -> Callable[[bytes], None]:
    """A whole broker with a worker and a caller, one of whose sockets receives these messages from a stranger."""

    def run(data: bytes) -> None:
        messages_ = wire_messages(data)
        broker = FuzzedBroker()
        broker.join("backend-1", "paint")
        stranger = f"{socket}-stranger"
        for frames in messages_[:50]:
            broker.send_frames(stranger, frames)
        broker.pass_time(2.0)
        broker.send("frontend-1", "REQUEST", {"service": "scale0.ping", "id": "alive"})
        if not broker.received("frontend-1", "REPLY"):
            raise Broken("another client is not answered")

    return run


def scale0_to_client(data: bytes) -> None:
    decoder = client_codec(LIMITS)
    for frames in wire_messages(data):
        if frames[0] == codec.MAGIC:
            for _ in decoder.messages(frames):
                pass
            for _ in decoder.decode(frames):
                pass


def scale0_batch(data: bytes) -> None:
    decoder = client_codec(LIMITS)
    frames = [codec.MAGIC, codec.BATCH, b"", data]
    one_by_one = [item for item in decoder.decode(frames) if not isinstance(item, Refusal)]
    together = decoder.decode_hot(frames)
    if together is not None and len(together) != len(one_by_one):
        raise Broken("a BATCH decodes to another number of messages than its messages one by one")
    codec.batch_splitter(LIMITS, lambda *_: False)("frontend", [b"id", *frames])
    codec.depth_within(data, LIMITS.max_json_depth)


def jsonrpc_calls(data: bytes) -> None:
    _, calls = messages.read_calls(data, 100)
    for call in calls:
        if isinstance(call, messages.MalformedCall):
            continue
        messages.canonical(bytes(call.params))
        for form in (*FORMS, node_reports.read_status):
            try:
                form(call.params)
            except messages.RpcError:
                pass


FORMS: Final = (
    client_methods._connect.read,
    client_methods._disconnect.read,
    client_methods._of_task.read,
    client_methods._wait.read,
    node_methods._connect.read,
    node_methods._request.read,
    node_methods._requests.read,
    node_methods._finished.read,
    node_methods._failed.read,
)


def task_messages(data: bytes) -> None:
    node_messages.read_tasks(data)
    node_messages.decoded(node_messages.decode_keys, data)
    node_messages.decoded(node_messages.decode_codes, data)
    native_protocol.read(native_protocol._statuses, data)
    native_protocol.read(native_protocol._dones, data)


def majordomo_frames(data: bytes) -> None:
    for frames in wire_messages(data):
        for form in (majordomo.CLIENT_01, majordomo.CLIENT_02, majordomo.CLIENT_DIALECT):
            try:
                majordomo.read_request(form, frames, LIMITS.max_service_bytes)
            except Refusal:
                pass
        majordomo.read_answer(frames, bodiless=True)


def titanic_frames(data: bytes) -> None:
    found = titanic.read_frames(data)
    if found is not None and titanic.read_frames(titanic.pack_frames(found)) != found:
        raise Broken("stored frames change when they are stored again")
    titanic.read_uuid([data])


def agent_line(to_helen: bool) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        whole, cut = Parser(to_helen), Parser(to_helen)
        at_once = whole.feed(data[1:])
        piecewise: list[ParsedItem] = []
        for piece in pieces(data):
            piecewise += cut.feed(piece)
        if at_once != piecewise:
            raise Broken("the same bytes give other messages when they are cut")

    return run


def check_result(data: bytes) -> None:
    found = results.read_result(data).finding
    again = results.read_result(results.write_result(found)).finding
    if again != found:
        raise Broken("a result changes when it is written and read again")


def configuration(format_name: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        for schema in SCHEMAS:
            try:
                document: Any = formats.parse(data, format_name, schema)
            except ConfigError:
                continue
            for other in formats.FORMATS:
                try:
                    text = formats.render(document, other)
                except ConfigError:  # this format cannot represent it
                    continue
                if formats.parse(text, other, schema) != document:
                    raise Broken(f"{schema.__name__} changes when it is written as {other}")

    return run


def configuration_patch(data: bytes) -> None:
    path, _, value = data.decode("utf-8", "replace").partition("=")
    document = NetworkDocument(version=1)
    key_paths.patch(document, {path: value})
    key_paths.patch(document, {}, [path])


def helen_bodies(data: bytes) -> None:
    socket_events.read_config(data)
    services.decode_body(data, results._Wire)
    notifier.read_params(data)


def helen_bundles(data: bytes) -> None:
    for read in (check_state.read_foreign, deduplication.read_foreign, _foreign_incident):
        try:
            read(data)
        except (ValueError, MsgspecError):
            pass


def _foreign_incident(data: bytes) -> None:
    incidents.read_foreign(data, "web-1")


def segment_file(data: bytes) -> None:
    arrow.verify(pa.BufferReader(data), SEGMENT)


def segment_name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = names.parse(text)
    if found is not None and names.name_of(found) != text:
        raise Broken("the name of a segment changes")
    names.day_of(text)


def tokens_and_addresses(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    joining.read_join_token(text)
    found = tokens.read_token(text)
    if found is not None and tokens.read_token(found.text()) != found:
        raise Broken("a token changes")
    parse_address(text)


def curve_certificate(data: bytes) -> None:
    curve_certificates.parse_certificate(data.decode("utf-8", "replace"))


def times(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    time_text.time_us(text, NOW_US)
    for read in (validation.duration_us, lambda one: validation.time_us(one, NOW_US)):
        try:
            read(text)
        except ApiProblem:
            pass


def http_body(data: bytes) -> None:
    validation.body_of(data, dict[str, Any])


def http_query(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    given = [tuple((*part.split("=", 1), "")[:2]) for part in text.split("&")]
    try:
        validation.check_query([(key, value) for key, value in given], {"limit": True, "after": False})
    except ApiProblem:
        pass
    parse_cursor(text)


def plugin_output(data: bytes) -> None:
    status = data[0] - 8 if data else 0
    found = perfdata.read_plugin(status, data[1:])
    results.read_result(results.write_result(found))


def plugin_arguments(data: bytes) -> None:
    plugin_command.read_args(data)


def lua_answer(data: bytes) -> None:
    lua_connection.read_answer(memoryview(data))
    lua_connection.read_hello(memoryview(data))


def threshold(data: bytes) -> None:
    found = Range.parse(data.decode("utf-8", "replace"))
    if Range.parse(str(found)) != found:
        raise Broken("a threshold changes when it is written and read again")


def dns_answer(data: bytes) -> None:
    dns_message.read(data, QUESTION)


def ntp_answer(data: bytes) -> None:
    if len(data) >= ntp.PACKET.size:
        ntp.read(data[: ntp.PACKET.size], MARK, 1.9e9, 0.1)


def certificate(data: bytes) -> None:
    certificates.parse_certificate(data)


def signing_request(data: bytes) -> None:
    pki.read_request(data.decode("utf-8", "replace"))


def journal_row(data: bytes) -> None:
    journal.read(data)


TARGETS: Final = {
    target.name: target
    for target in (
        Target("zmtp_null", zmtp_null, (zmtp.ZmtpError,)),
        Target("zmtp_client", zmtp_client, (zmtp.ZmtpError,)),
        Target("zmtp_curve_client", zmtp_curve_client, (zmtp.ZmtpError,)),
        Target("zmtp_subscriber", zmtp_subscriber, (zmtp.ZmtpError,)),
        Target("zmtp_curve", zmtp_encrypted, (zmtp.ZmtpError,)),
        Target("broker_frontend", broker_socket("frontend"), (zmtp.ZmtpError,)),
        Target("broker_backend", broker_socket("backend"), (zmtp.ZmtpError,)),
        Target("broker_peer", broker_socket("peer"), (zmtp.ZmtpError,)),
        Target("scale0_to_client", scale0_to_client, (zmtp.ZmtpError,)),
        Target("scale0_batch", scale0_batch),
        Target("jsonrpc", jsonrpc_calls),
        Target("task_messages", task_messages, (Refusal,)),
        Target("majordomo", majordomo_frames, (Refusal, zmtp.ZmtpError)),
        Target("titanic", titanic_frames, (Refusal,)),
        Target("agent_to_helen", agent_line(True)),
        Target("helen_to_agent", agent_line(False)),
        Target("check_result", check_result),
        Target("config_json", configuration("json")),
        Target("config_xml", configuration("xml")),
        Target("config_zpl", configuration("zpl")),
        Target("config_patch", configuration_patch, (ConfigError,)),
        Target("helen_bodies", helen_bodies, (Scale0Error, notifier.NotificationFailed)),
        Target("helen_bundles", helen_bundles),
        Target("segment_file", segment_file, (StoreError,)),
        Target("segment_name", segment_name),
        Target("journal_row", journal_row, (StoreError,)),
        Target("tokens", tokens_and_addresses),
        Target("curve_certificate", curve_certificate, (ValueError,)),
        Target("times", times),
        Target("http_body", http_body, (ApiProblem,)),
        Target("http_query", http_query, (InvalidCursor,)),
        Target("plugin_output", plugin_output),
        Target("plugin_arguments", plugin_arguments, (Refusal,)),
        Target("lua_answer", lua_answer, (EOFError,)),
        Target("threshold", threshold, (ValueError,)),
        Target("dns_answer", dns_answer, (dns_message.Malformed,)),
        Target("ntp_answer", ntp_answer, (CheckFailed,)),
        Target("certificate", certificate, (ValueError,)),
        Target("signing_request", signing_request, (Refusal,)),
    )
}
"""By name."""
