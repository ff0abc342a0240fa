"""The check `tls` with real servers on loopback, and with certificates of arbitrary bytes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.checks.certificates import parse_certificate
from tests.processes.checks.servers import certificate, hold, metrics, run, tcp_server, tls_server


def checked(pem, timeout=5.0, **args):
    with tls_server(pem, hold) as port:
        return run("tls", timeout, host="127.0.0.1", port=port, **args)


@pytest.mark.processes
@pytest.mark.parametrize(("days", "state"), [(90, "ok"), (20, "warning"), (5, "critical")])
def test_a_certificate_tells_the_days_left(tmp_path, days, state):
    pem = certificate(tmp_path, days)
    found = checked(pem, ca_file=str(pem))
    assert found.state == state
    values = metrics(found)["days_left"]
    assert values.value == pytest.approx(days, abs=0.1)
    assert (values.warn, values.crit) == (21, 7)
    assert "localhost" in found.message


@pytest.mark.processes
@pytest.mark.parametrize("verify", [True, False])
def test_an_expired_certificate_is_read_and_reported_as_expired(tmp_path, verify):
    pem = certificate(tmp_path, -3)
    found = checked(pem, ca_file=str(pem), verify=verify, crit=None)
    assert found.state == "critical"
    assert "expired 3 d ago" in found.message
    assert metrics(found)["days_left"].value == pytest.approx(-3, abs=0.1)


@pytest.mark.processes
def test_a_certificate_that_nobody_trusts_is_critical_with_its_days(tmp_path):
    found = checked(certificate(tmp_path, 90))
    assert found.state == "critical"
    assert "not good" in found.message
    assert metrics(found)["days_left"].value == pytest.approx(90, abs=0.1)
    assert checked(certificate(tmp_path, 90), verify=False).state == "ok"


@pytest.mark.processes
def test_a_certificate_of_another_host_is_critical(tmp_path):
    pem = certificate(tmp_path, 90, host="other.example")
    found = checked(pem, ca_file=str(pem))
    assert found.state == "critical"
    assert checked(pem, ca_file=str(pem), server_name="other.example").state == "ok"


@pytest.mark.processes
def test_a_certificate_of_the_future_is_critical(tmp_path):
    pem = certificate(tmp_path, 90, begins_days=3)
    found = checked(pem, ca_file=str(pem))
    assert found.state == "critical"
    assert "not valid yet" in found.message


@pytest.mark.processes
def test_a_port_without_tls_is_critical():
    with tcp_server(lambda connection: connection.sendall(b"220 hello\r\n")) as port:
        plain = run("tls", host="127.0.0.1", port=port)
    with tcp_server(hold) as port:
        silent = run("tls", timeout=0.4, host="127.0.0.1", port=port)
    assert plain.state == silent.state == "critical"
    assert silent.seconds is not None
    assert silent.seconds < 0.4 + 1


# Promise: CHECK-5
@given(st.binary(max_size=200))
def test_whatever_bytes_a_certificate_has_there_is_an_answer(der):
    try:
        parse_certificate(der)
    except ValueError:
        pass


@given(st.data())
def test_a_certificate_with_a_wrong_byte_or_a_missing_end_never_crashes(data):
    der = data.draw(st.just(DER))
    at = data.draw(st.integers(0, len(der) - 1))
    byte = data.draw(st.integers(0, 255))
    for wrong in (der[:at], der[:at] + bytes((byte,)) + der[at + 1 :]):
        try:
            parse_certificate(wrong)
        except ValueError:
            pass


def _der() -> bytes:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        text = certificate(Path(folder), 9_000).read_text()  # past 2049: the other form of a time
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :])


DER = _der()


def test_a_time_after_2049_is_read():
    import time

    assert (parse_certificate(DER).ends - time.time()) / 86_400 == pytest.approx(9_000, abs=0.1)
