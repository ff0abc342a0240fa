"""The agent's certificate: its name and validity, and files that are not certificates."""

from __future__ import annotations

import ssl

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.errors import ConfigError
from scale0.monitoring.agent.edge.certificate import read_certificate
from scale0.monitoring.checks.certificates import parse_certificate
from tests.fakes.certificates import Authority


def test_it_says_what_a_library_for_certificates_says(authority: Authority):
    path, _ = authority.agent("web-1.example.com")
    found = read_certificate(path)
    other = x509.load_pem_x509_certificate(path.read_bytes())
    assert found.identity == "web-1.example.com"
    assert found.not_before == other.not_valid_before_utc.timestamp()
    assert found.not_after == other.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_none_is_refused(tmp_path, text):
    file = tmp_path / "a.pem"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read_certificate(file)


def test_a_name_that_no_agent_may_have_is_refused(authority: Authority):
    with pytest.raises(ConfigError, match="common name"):
        read_certificate(authority.agent("no good")[0])


def test_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_certificate(tmp_path / "nowhere.pem")


@given(st.data())
def test_bytes_that_were_changed_raise_nothing_but_what_is_expected(authority, data):
    der = bytearray(ssl.PEM_cert_to_DER_cert(authority.ca.read_text()))
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_certificate(bytes(der[: data.draw(st.integers(0, len(der)))]))
    except ValueError:
        pass
