"""The check `dns` with a fake name server on loopback, and with answers of arbitrary bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.checks import dns_message
from tests.processes.checks.servers import metrics, run, tcp_server, udp_server

POINTER = b"\xc0\x0c"
"""The name of the question, said again."""


def record(type_, data, ttl=300, name=POINTER):
    return name + struct.pack("!HHIH", dns_message.TYPES[type_], 1, ttl, len(data)) + data


def reply(asked, *records, rcode=0, flags=0x8180, count=None):
    header = asked[:2] + struct.pack("!5H", flags | rcode, 1, len(records) if count is None else count, 0, 0)
    return header + asked[12:] + b"".join(records)


def labels(*names):
    return b"".join(bytes((len(name),)) + name.encode() for name in names)


def checked(answers, timeout=5.0, **args):
    with udp_server(answers) as port:
        return run("dns", timeout, **{"name": "www.example.com", "server": "127.0.0.1", "port": port, **args})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("type_", "data", "text"),
    [
        ("A", bytes((192, 0, 2, 7)), "192.0.2.7"),
        ("AAAA", bytes.fromhex("20010db8" + "0" * 23 + "1"), "2001:db8::1"),
        ("MX", b"\x00\x0a" + labels("mail") + b"\xc0\x10", "10 mail.example.com"),
        ("NS", labels("ns1") + b"\xc0\x10", "ns1.example.com"),
        ("CNAME", labels("web") + POINTER, "web.www.example.com"),
        ("TXT", b"\x05v=spf\x02 1", "v=spf 1"),
    ],
)
def test_records_of_every_type_are_read_and_compared(type_, data, text):
    found = checked(lambda asked: [reply(asked, record(type_, data))], type=type_, expect=[text])
    assert found.state == "ok", found
    assert found.message.endswith(text)
    values = metrics(found)
    assert (values["records"].value, values["ttl_seconds"].value) == (1, 300)


@pytest.mark.processes
def test_an_answer_that_is_missing_is_critical():
    both = [record("A", bytes((192, 0, 2, n)), ttl=n) for n in (1, 2)]
    found = checked(lambda asked: [reply(asked, *both)], expect=["192.0.2.1", "192.0.2.9"])
    assert found.state == "critical"
    assert found.message.endswith("without 192.0.2.9")
    assert metrics(found)["ttl_seconds"].value == 1


@pytest.mark.processes
def test_names_compare_without_case_and_last_dot():
    found = checked(
        lambda asked: [reply(asked, record("NS", labels("NS1") + POINTER))], type="NS", expect=["ns1.WWW.example.com."]
    )
    assert found.state == "ok"


@pytest.mark.processes
def test_an_error_and_an_empty_answer_are_critical():
    assert "NXDOMAIN" in checked(lambda asked: [reply(asked, rcode=3)]).message
    refused = checked(lambda asked: [asked[:2] + struct.pack("!5H", 0x8185, 0, 0, 0, 0)])
    assert (refused.state, "REFUSED" in refused.message) == ("critical", True)
    nothing = checked(lambda asked: [reply(asked, record("CNAME", labels("web") + POINTER))])
    assert nothing.state == "critical"
    assert "there is none" in nothing.message


@pytest.mark.processes
def test_answers_to_other_questions_are_passed_over():
    def answers(asked):
        other = bytes((asked[0] ^ 1,)) + asked[1:]
        question = reply(asked.replace(b"www", b"xxx"), record("A", bytes(4)))
        right = reply(asked, record("A", bytes((192, 0, 2, 7))))
        return [b"", b"x" * 11, reply(other, record("A", bytes(4))), asked, question, right]

    assert checked(answers, expect=["192.0.2.7"]).state == "ok"


@pytest.mark.processes
def test_a_datagram_that_got_lost_is_sent_again():
    questions = []

    def answers(asked):
        questions.append(asked)
        return [] if len(questions) == 1 else [reply(asked, record("A", bytes(4)))]

    assert checked(answers, timeout=1.5).state == "ok"
    assert len(questions) == 2


# Promise: CHECK-1
@pytest.mark.processes
def test_a_silent_server_ends_with_the_timeout():
    found = checked(lambda asked: [], timeout=0.4)
    assert found.state == "critical"
    assert "no answer in time" in found.message
    assert found.seconds is not None
    assert found.seconds < 0.4 + 1


@pytest.mark.processes
def test_an_answer_that_is_cut_is_asked_for_again_over_tcp():
    many = [record("A", bytes((192, 0, 2, n))) for n in range(200)]

    def serve(connection):
        length = int.from_bytes(connection.recv(2), "big")
        answer = reply(connection.recv(length), *many)
        connection.sendall(len(answer).to_bytes(2, "big") + answer)

    with tcp_server(serve) as port:
        import socket
        import threading

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", port))  # the same number for both, as name servers have it
            sock.settimeout(10)

            def cut():
                asked, sender = sock.recvfrom(512)
                sock.sendto(reply(asked, flags=0x8380), sender)

            thread = threading.Thread(target=cut)
            thread.start()
            found = run("dns", name="www.example.com", server="127.0.0.1", port=port, expect=["192.0.2.199"])
            thread.join()
    assert found.state == "ok", found
    assert metrics(found)["records"].value == 200


@pytest.mark.parametrize("name", [".", "a..b", "a" * 64, "a." * 130, "münchen.example", "..", "x" * 300])
def test_what_is_no_name_is_unknown(name):
    found = run("dns", name=name, server="127.0.0.1", port=1)
    assert found.state == "unknown"
    assert "arg name" in found.message


ASKED = dns_message.encode_question(7, "www.example.com", "A")


def read(message):
    try:
        return dns_message.read(message, ASKED)
    except dns_message.Malformed:
        return None


# Promise: CHECK-5
@given(st.binary(max_size=120))
def test_whatever_bytes_come_there_is_an_answer(tail):
    read(tail)
    for type_ in dns_message.TYPES:
        asked = dns_message.encode_question(7, "www.example.com", type_)
        try:
            dns_message.read(reply(asked, count=9) + tail, asked)
        except dns_message.Malformed:
            pass


@pytest.mark.parametrize(
    "name", [b"\xc0\x21", b"\xc0\x22", b"\xc0\xff", b"\xc0", b"\x80a", b"\x3fa", b"\x01a\xc0\x21", b"\x01a" * 200]
)
def test_a_name_that_points_in_a_circle_or_nowhere_ends(name):
    assert read(reply(ASKED, name, count=1)) is None


def test_the_servers_of_this_machine_are_read(tmp_path, monkeypatch):
    from scale0.monitoring.checks import dns

    file = tmp_path / "resolv.conf"
    file.write_text("# any\nsearch x\nnameserver 127.0.0.1\nnameserver\nnameserver ::1 # more\n")
    monkeypatch.setattr(dns, "RESOLVER_FILE", str(file))
    assert dns.servers_of(dns.Args(name="x")) == ["127.0.0.1", "::1"]
    file.write_text("")
    assert "names no server" in run("dns", name="x").message
    file.unlink()
    assert "cannot be read" in run("dns", name="x").message
