"""Writes the first inputs of each corpus, made of real messages: `python -m fuzz.seeds`. Files are named by content."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fuzz.harness import keep
from fuzz.targets import MARK, QUESTION, SECRET, curve_client
from scale0.config import BrokerConfig, NetworkDocument, formats
from scale0.config.network_documents import first_document
from scale0.history.events.columns import EventMetric
from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.history.segments import arrow
from scale0.kernel.clock import Now
from scale0.monitoring.agent.edge.lua_connection import LuaAnswer, LuaHello
from scale0.monitoring.checks import ntp
from scale0.monitoring.pki.certificates import request_pem
from scale0.monitoring.pki.tokens import new_token
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.parser import FORMS, INT, NO_BLOB
from scale0.monitoring.protocol.results import OK, CheckFinding, write_result
from scale0.tasks.jsonrpc import arguments
from scale0.transport.core import codec, zmtp, zmtp_curve
from scale0.transport.core.command_table import RULES, TO_CLIENTS
from scale0.transport.edge.curve_certificates import new_certificate, text_of
from simulator.network.hostile_client import BODIES, METHODS, OPTIONS, PARAMS
from tests.fakes.zmtp_bytes import command, frame, greeting, message, ready

WHOLE: Final = b"\xff"
"""The first byte of an input that arrives in one piece."""
PACK: Final = msgspec.msgpack.encode
VALUES: Final[dict[str, Any]] = {
    "config_type": "zpl",
    "identity": "web-1",
    "services": ["paint"],
    "config_version": 1,
    "config_hash": "ab",
    "batch": True,
    "slots": 2,
    "prefetch": 1,
    "holds": [["t-1", 1]],
    "service": "paint",
    "id": 7,
    "timeout": 2.5,
    "retry": True,
    "code": 500,
    "message": "no",
    "command": "status",
    "auth_token": "s0_x",
    "time": 1.9e9,
    "broker": "east-1",
    "group": "east",
    "seq": 3,
    "version": 2,
    "full": True,
    "state": "active",
    "load": 0.5,
}
CONFIGS: Final = ("broker.json", "broker.xml", "broker.zpl", "two_groups/east.zpl", "nagios/plugins.zpl")


def options_of(schema: type) -> dict[str, Any]:
    """Valid values for the options that a command has."""
    wanted = {field.name for field in msgspec.inspect.type_info(schema).fields}  # type: ignore[attr-defined]
    return {name: value for name, value in VALUES.items() if name in wanted}


def scale0_seeds() -> None:
    for rule in RULES:
        options = options_of(rule.schema)
        frames = codec.encode((rule.command, options, b"body"))
        for socket in rule.sockets:
            if f"broker_{socket}" in ("broker_frontend", "broker_backend", "broker_peer"):
                keep(f"broker_{socket}", message(frames) + message([b"", *frames]), "seed")
    for name, schema in TO_CLIENTS.items():
        options = options_of(schema)
        keep("scale0_to_client", message(codec.encode((name, options, b"body"))), "seed")
        keep("scale0_batch", PACK([(name, options, b"body"), ("HEARTBEAT", {"time": 1.0})]), "seed")
    batch = PACK([("REQUEST", {"service": "paint", "id": n}, b"x") for n in range(3)])
    for socket in ("frontend", "backend", "peer"):
        keep(f"broker_{socket}", message([codec.MAGIC, codec.BATCH, b"", batch]), "seed")
        for number, given in enumerate(OPTIONS[:12]):
            keep(f"broker_{socket}", message([codec.MAGIC, RULES[number].command.encode(), given]), "seed")


def zmtp_seeds() -> None:
    frames = message([b"SCALE0/1", b"HEARTBEAT", b""]) + message([b"x" * 300])
    for cut in (WHOLE, b"\x00", b"\x06"):
        keep("zmtp_null", cut + greeting() + ready() + frames, "seed")
        keep("zmtp_null", cut + greeting() + ready(b"REQ", b"me") + command(b"PING", b"\x00\x0actx") + frames, "seed")
        keep(
            "zmtp_subscriber", cut + greeting() + ready(b"SUB") + command(b"SUBSCRIBE", b"a") + frame(b"\x01b"), "seed"
        )
        keep("zmtp_curve", cut + command(b"HELLO", b"\x01\x00" + bytes(192)) + command(b"INITIATE", bytes(300)), "seed")
        keep("zmtp_client", cut + greeting() + ready(b"ROUTER") + command(b"PING", b"\x00\x0actx") + frames, "seed")
        keep("zmtp_curve_client", cut + answers_of_a_server(), "seed")
    keep("zmtp_client", WHOLE + greeting(b"CURVE"), "seed")
    keep("zmtp_curve_client", WHOLE + greeting(b"CURVE") + command(b"WELCOME", bytes(160)), "seed")
    keep("zmtp_curve_client", WHOLE + greeting(b"CURVE") + command(b"ERROR", b"\x03400"), "seed")
    keep("zmtp_null", WHOLE + b"GET / HTTP/1.1\r\n\r\n", "seed")
    keep("zmtp_null", WHOLE + b"\x01\x00\x05hello", "seed")
    keep("zmtp_null", WHOLE + greeting() + command(b"READY", b"\xff"), "seed")


def answers_of_a_server() -> bytes:
    """A whole handshake of CURVE, and a message, as a server sends them to `curve_client`."""
    client = curve_client()
    mechanism = zmtp_curve.CurveServer((SECRET,), zmtp.ROUTER, lambda _public, _server: "", bytes)
    server = zmtp.ZmtpSession(zmtp.ROUTER, mechanism, 100_000, 20)
    sent = b""
    for _ in range(4):
        server.receive(b"".join(client.outgoing))
        data = b"".join(server.outgoing)
        client.outgoing, server.outgoing = [], []
        client.receive(data)
        sent += data
    return sent + b"".join(server.encode([b"SCALE0/1", b"HEARTBEAT", b"{}"]))


def task_seeds() -> None:
    for method, params in zip((*METHODS, *METHODS), PARAMS, strict=False):
        call = f'{{"jsonrpc":"2.0","method":"zerotask.broker.{method}","params":{params},"id":1}}'.encode()
        keep("jsonrpc", call, "seed")
        keep("jsonrpc", b"[%b,7]" % call, "seed")
        for socket in ("frontend", "backend"):
            keep(f"broker_{socket}", message([call]), "seed")
    for body in (*BODIES, b'[["t-1",1,200]]', b'[{"id":"t","attempt":1,"method":"m","params":{}}]'):
        keep("task_messages", body, "seed")
        keep("broker_backend", message([codec.MAGIC, b"TASKSDONE", b"", body]), "seed")
    named = {field.name: 1 for field in msgspec.structs.fields(arguments.TaskRequest)}
    keep("jsonrpc", json.dumps({"jsonrpc": "2.0", "method": "x", "params": named}).encode(), "seed")
    for header in (b"MDPC01", b"MDPC02", b"MDPW01", b"MDPW02"):
        for number in b"\x01\x02\x03\x04\x05\x06":
            frames = [header, bytes((number,)), b"paint", b"", b"body"]
            keep("majordomo", message(frames), "seed")
            keep("broker_frontend" if header[3:4] == b"C" else "broker_backend", message([b"", *frames]), "seed")
    for service in (b"titanic.request", b"titanic.reply", b"titanic.close", b"mmi.service"):
        keep("broker_frontend", message([b"", b"MDPC01", service, b"a" * 32]), "seed")
    keep("titanic", b'{"titanic":["YQ==",""]}', "seed")
    keep("titanic", b"0123456789abcdef0123456789ABCDEF", "seed")


def agent_seeds() -> None:
    finding = CheckFinding(OK, "fine", (EventMetric("load", 0.5, "s", 1.0, 2.0, 0.0, 9.0),), 1.9e9, 0.1)
    body = write_result(finding)
    for form in FORMS:
        fields: list[Any] = [1 if kind is INT else "web-1" for kind in form.parameters]
        line = encode(form.message_class(*fields, *([] if form.max_blob_bytes == NO_BLOB else [body])))
        for cut in (WHOLE, b"\x02"):
            keep("agent_to_helen", cut + line + line, "seed")
            keep("helen_to_agent", cut + line + line, "seed")
    for given in (body, b"{}", b'{"state":"ok","message":"x","spool":"s","n":3}', b'{"state":"ok","metrics":[{}]}'):
        keep("check_result", given, "seed")
        keep("helen_bodies", given, "seed")
    keep("helen_bodies", b'[{"handler":"mail","notification":{}}]', "seed")
    for packed in (PACK([1, 5, 9, 12]), PACK([]), PACK(["web-1", "disk", "critical", 1.0])):
        keep("helen_bundles", packed, "seed")
    for text in (b"\x08OK - 5 users | users=5;20;50;0 'a b'=1,5%;~:10;@5:10", b"\x0aWARN\nlong | x=1\ny=2", b"\x02|=;"):
        keep("plugin_output", text, "seed")
    for args in (b"{}", b'{"host":"a","port":80}', b"[]", b"[" * 100):
        keep("plugin_arguments", args, "seed")
        keep("http_body", args, "seed")
    keep("lua_answer", PACK(LuaAnswer(3, finding)), "seed")
    keep("lua_answer", PACK(LuaHello(1_234)), "seed")


def config_seeds(examples: Path) -> None:
    documents: list[msgspec.Struct] = [first_document(BrokerConfig(identity="east-1")), BrokerConfig(identity="a")]
    documents += [NetworkDocument(version=1)]
    for format_name in formats.FORMATS:
        for document in documents:
            keep(f"config_{format_name}", formats.render(document, format_name), "seed")
    for name in CONFIGS:
        keep(f"config_{name.rpartition('.')[2]}", (examples / name).read_bytes(), "seed")
    keep("config_xml", b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "seed")
    for path in (b"services.paint.timeout=3", b"groups[a]].b]=x", b"checks=", b"brokers.a.endpoints.peer=tcp://a:1"):
        keep("config_patch", path, "seed")


def file_seeds() -> None:
    row = Journal("east-1", 7, 1, 0).append([SourceAlive("east-1")] * 3, Now(1.0, 1.9e9))
    assert row is not None
    keep("journal_row", row.body, "seed")
    out = io.BytesIO()
    arrow.write(arrow.table_of([row]), out)
    keep("segment_file", out.getvalue(), "seed")
    for name in ("events-east-1-7-1-3.parquet", "day=2026-11-18", "events-a%20b-0-1-1.parquet", "day=2026-02-31"):
        keep("segment_name", name.encode(), "seed")
    pair = new_certificate(name="w1", role="backend")
    keep("curve_certificate", text_of(pair, with_secret=False).encode(), "seed")
    keep("curve_certificate", b'#\nmetadata\n    name = "a"\ncurve\n    public-key = "x"\n', "seed")
    for token in (new_token(bytes(32), "web-1", "helen:5800").text(), "s0j_" + base64.b64encode(bytes(73)).decode()):
        keep("tokens", token.encode(), "seed")
    keep("tokens", b"[::1]:5800", "seed")
    key = ec.generate_private_key(ec.SECP256R1())
    keep("signing_request", request_pem(key, "web-1").encode(), "seed")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    keep("certificate", key.public_key().public_bytes(serialization.Encoding.DER, form), "seed")


def text_seeds() -> None:
    for text in ("2026-11-18T11:23:08Z", "90s", "0001-01-01", "9999-12-31T23:59:59-14:00", "99999999w", "2026-W47-3"):
        keep("times", text.encode(), "seed")
    for text in ("limit=5&after=x", "east-1:17,west-1:3", "a%2Cb:1", "limit=1&limit=2", "limit=٣"):
        keep("http_query", text.encode(), "seed")
    for text in ("10", "10:", "~:10", "10:20", "@10:20", "-1e300:1e300", "0.1", "1e-5:", "@~:"):
        keep("threshold", text.encode(), "seed")
    answer = QUESTION[:2] + b"\x81\x80" + QUESTION[4:6] + b"\x00\x01" + QUESTION[8:]
    keep("dns_answer", answer + b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x7f\x00\x00\x01", "seed")
    keep("dns_answer", answer + b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x02\xc0\x0c", "seed")
    stamp = 1_900_000_000 + 2_208_988_800
    packet = ntp.PACKET.pack(0x24, 2, 0, 0, 0, 0, 1, stamp, 0, MARK >> 32, MARK & 0xFFFFFFFF, stamp, 0, stamp, 0)
    keep("ntp_answer", packet, "seed")
    keep("ntp_answer", struct.pack("!48x"), "seed")


def main() -> None:
    zmtp_seeds()
    scale0_seeds()
    task_seeds()
    agent_seeds()
    config_seeds(Path(__file__).parent.parent / "examples")
    file_seeds()
    text_seeds()


if __name__ == "__main__":
    main()
