"""Helen's CA: tokens, the certificates that it signs, and revocation."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scale0.kernel.errors import Refusal
from scale0.monitoring.pki import certificates, revocations
from scale0.monitoring.pki.authority import (
    MAX_ENROL_BYTES,
    MAX_LIVE_CERTIFICATES,
    AuthorityError,
    CertificateAuthority,
    create_authority,
)
from scale0.monitoring.pki.tokens import read_token

NOW = 1_800_000_000.0
DAY = 86_400.0


def body(token, csr=None, name="web-1"):
    return json.dumps({"token": token, "csr": csr or request(name)}).encode()


def renewal(csr=None, name="web-1"):
    return json.dumps({"csr": csr or request(name)}).encode()


def request(name="web-1", key=None):
    return certificates.request_pem(key or certificates.new_key(), name)


def signed_request(key, names=("web-1",), algorithm=None, **more):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in more.get("extensions", ()):
        builder = builder.add_extension(extension, critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else algorithm or hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()


def leaf(chain) -> x509.Certificate:
    assert isinstance(chain, bytes), chain
    return x509.load_pem_x509_certificates(chain)[0]


def refused(found) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def serial_of(chain) -> str:
    return f"{leaf(chain).serial_number:X}"


# ---- what is signed


def test_a_token_gets_a_certificate_that_can_connect_and_do_nothing_else(authority, folder):
    key = certificates.new_key()
    token = authority.make_token(NOW, 60).text()
    chain = authority.enrol(body(token, request("web-1", key)), None, NOW)
    found, agents = x509.load_pem_x509_certificates(chain)
    [root] = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
    assert (folder / "agents-ca.pem").read_text() == certificates.pem_of(agents, root)
    found.verify_directly_issued_by(agents)
    agents.verify_directly_issued_by(root)
    assert found.public_key() == key.public_key()
    assert found.subject.rfc4514_string() == "CN=web-1"
    extension = found.extensions.get_extension_for_class
    assert list(extension(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert extension(x509.BasicConstraints).value.ca is False
    assert extension(x509.KeyUsage).value.key_cert_sign is False
    assert found.not_valid_after_utc.timestamp() == NOW + 30 * DAY
    assert found.not_valid_before_utc.timestamp() == NOW - certificates.EARLY_SECONDS


# Promise: AGENT-18
def test_nothing_of_a_request_but_its_key_and_its_name_is_signed(authority):
    wishes = (
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("localhost")]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    csr = signed_request(certificates.new_key(), extensions=wishes)
    found = leaf(authority.enrol(body(authority.make_token(NOW, 60).text(), csr), None, NOW))
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    with pytest.raises(x509.ExtensionNotFound):
        found.extensions.get_extension_for_class(x509.SubjectAlternativeName)


@pytest.mark.parametrize("make", [ed25519.Ed25519PrivateKey.generate, lambda: ec.generate_private_key(ec.SECP384R1())])
def test_other_strong_keys_are_taken(authority, make):
    token = authority.make_token(NOW, 60).text()
    assert leaf(authority.enrol(body(token, signed_request(make())), None, NOW)).serial_number


def weak_requests():
    strong = certificates.new_key()
    good = request()
    middle = good.splitlines()[1:-1]
    flipped = middle[2][:5] + ("A" if middle[2][5] != "A" else "B") + middle[2][6:]
    torn = "\n".join([good.splitlines()[0], *middle[:2], flipped, *middle[3:], good.splitlines()[-1], ""])
    return {
        "no PEM": "hello",
        "empty": "",
        "not ASCII": "ü",
        "not base64": "-----BEGIN CERTIFICATE REQUEST-----\n!!!!\n-----END CERTIFICATE REQUEST-----\n",
        "not PKCS #10": "-----BEGIN CERTIFICATE REQUEST-----\naGVsbG8=\n-----END CERTIFICATE REQUEST-----\n",
        "torn": torn,
        "cut": good[: len(good) // 2],
        "oversized": good + " " * certificates.MAX_REQUEST_CHARS,
        "no name": signed_request(strong, ()),
        "two names": signed_request(strong, ("web-1", "web-2")),
        "a name with a space": signed_request(strong, ("web 1",)),
        "a name with a slash": signed_request(strong, ("../web-1",)),
        "short RSA": signed_request(rsa.generate_private_key(65_537, 1_024)),
        "DSA": signed_request(dsa.generate_private_key(2_048)),
        "a strange curve": signed_request(ec.generate_private_key(ec.SECP224R1())),
        "an old curve": signed_request(ec.generate_private_key(ec.SECP192R1())),
    }


# Promise: AGENT-18
@pytest.mark.parametrize(("kind", "csr"), weak_requests().items(), ids=weak_requests().keys())
def test_a_weak_or_malformed_request_is_refused_and_costs_no_token(authority, folder, kind, csr):
    token = authority.make_token(NOW, 60).text()
    # JSON has no room for an empty or foreign field to be anything but text.
    found = refused(authority.enrol(json.dumps({"token": token, "csr": csr}).encode(), None, NOW))
    assert found.code in (400, 413)
    assert list((folder / "issued").iterdir()) == []
    assert leaf(authority.enrol(body(token), None, NOW)).serial_number


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"token": "x"}',
        b'{"csr": 5}',
        b'{"csr": "x", "token": null}',
        b'{"csr": "x", "cn": "root"}',
        b'{"csr": "\xff"}',
        b'{"csr": "\\ud800", "token": "s1"}',
        b"[" * 30_000,
        b'{"x":' * 5_000,
        b" " * (MAX_ENROL_BYTES + 1),
    ],
    ids=lambda data: repr(data[:20]),
)
@pytest.mark.parametrize("name", [None, "web-1"])
def test_what_is_no_enrolment_is_refused(authority, data, name):
    assert refused(authority.enrol(data, name, NOW)).code in (400, 401, 413)


# ---- tokens


# Promise: AGENT-18
def test_a_token_is_used_once(authority, folder):
    token = authority.make_token(NOW, 60, "web-1").text()
    assert isinstance(authority.enrol(body(token), None, NOW), bytes)
    found = refused(authority.enrol(body(token), None, NOW))
    assert (found.code, "was used" in found.message, "scale0 helen token" in found.message) == (401, True, True)
    assert list((folder / "tokens").iterdir()) == []


# Promise: AGENT-18
def test_of_two_at_once_exactly_one_gets_in(folder, authority):
    for _ in range(10):
        token = authority.make_token(NOW, 60).text()
        bodies = [body(token, name=f"web-{n}-{token[-8:]}".replace("_", "-")) for n in range(4)]
        found: list[bytes | Refusal] = []
        start = threading.Barrier(len(bodies))

        def one(data: bytes, start: threading.Barrier = start, found: list[bytes | Refusal] = found) -> None:
            own = CertificateAuthority(folder)  # as another process would
            start.wait(10)
            found.append(own.enrol(data, None, NOW))

        threads = [threading.Thread(target=one, args=(data,)) for data in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(isinstance(each, bytes) for each in found) == [False, False, False, True]


def test_the_rename_alone_lets_exactly_one_use_a_token(folder, authority):
    token = authority.make_token(NOW, 60)
    assert [authority._tokens.use(token), authority._tokens.use(token)] == [True, False]


# Promise: AGENT-18
def test_an_expired_token_is_refused_and_swept(authority, folder):
    token = authority.make_token(NOW, 60).text()
    assert "expired" in refused(authority.enrol(body(token), None, NOW + 3_600)).message
    assert isinstance(authority.enrol(body(token), None, NOW + 3_599), bytes)
    authority.make_token(NOW, 1)
    authority.make_token(NOW + 3_600, 60)
    assert len(list((folder / "tokens").iterdir())) == 1


# Promise: AGENT-18
def test_a_token_for_one_name_is_for_no_other(authority):
    token = authority.make_token(NOW, 60, "web-1").text()
    found = refused(authority.enrol(body(token, name="web-2"), None, NOW))
    assert found.code == 403
    assert "--name web-1" in found.message
    assert leaf(authority.enrol(body(token), None, NOW)).subject.rfc4514_string() == "CN=web-1"


# Promise: AGENT-18
def test_a_token_without_a_name_takes_nobody_elses(authority):
    assert isinstance(authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW), bytes)
    token = authority.make_token(NOW, 60).text()
    found = refused(authority.enrol(body(token), None, NOW))
    assert (found.code, "web-1 is enrolled already" in found.message) == (409, True)
    assert isinstance(authority.enrol(body(token), None, NOW + 31 * DAY), Refusal)  # the token is over by then
    again = authority.make_token(NOW + 31 * DAY, 60).text()
    assert isinstance(authority.enrol(body(again), None, NOW + 31 * DAY), bytes)


@pytest.mark.parametrize("change", [lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"), lambda t: "", lambda t: t * 20])
def test_a_token_that_nobody_made_is_refused(authority, change):
    token = authority.make_token(NOW, 60).text()
    assert refused(authority.enrol(body(change(token)), None, NOW)).code == 401


def test_a_token_of_another_authority_is_refused(authority, tmp_path):
    other = create_authority(tmp_path / "other", ["localhost"], NOW)
    token = other.make_token(NOW, 60).text()
    assert refused(authority.enrol(body(token), None, NOW)).code == 401


# Promise: AGENT-19
def test_a_token_says_who_made_it_for_whom_and_where_and_no_file_has_it(authority, folder):
    token = authority.make_token(NOW, 60, "web-1", "helen.example:4166")
    text = token.text()
    assert read_token(text) == token
    assert text.split() == [text]
    assert (token.name, token.address) == ("web-1", "helen.example:4166")
    for path in folder.rglob("*.*"):
        assert not path.is_file() or token.secret not in path.read_text()
    assert token.secret not in repr(token)


@pytest.mark.parametrize("text", ["", "s1", "s1.a.b", "s2" + "." + "A" * 43 + "." + "A" * 43, "x" * 5_000])
def test_text_that_is_no_token_is_none(text):
    assert read_token(text) is None
    assert read_token(f"s1.{'A' * 43}.{'A' * 43}@not a place") is None
    assert read_token(f"s1.{'A' * 43}.{'A' * 43}@host:99999") is None


# ---- renewal


# Promise: AGENT-20
def test_a_renewal_keeps_its_name_and_needs_no_token(authority):
    first = authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)
    second = authority.enrol(renewal(), "web-1", NOW + DAY, serial_of(first))
    assert leaf(second).subject.rfc4514_string() == "CN=web-1"
    assert leaf(second).not_valid_after_utc.timestamp() == NOW + 31 * DAY
    found = refused(authority.enrol(renewal(name="root"), "web-1", NOW, serial_of(first)))
    assert (found.code, "keeps its name" in found.message) == (403, True)


def test_a_name_cannot_have_endless_certificates(authority):
    for n in range(MAX_LIVE_CERTIFICATES):
        assert isinstance(authority.enrol(renewal(), "web-1", NOW + n), bytes)
    assert refused(authority.enrol(renewal(), "web-1", NOW + 60)).code == 429
    assert isinstance(authority.enrol(renewal(), "web-1", NOW + 30 * DAY + 10), bytes)


# Promise: AGENT-18
def test_a_name_with_many_revoked_certificates_can_be_enrolled_again(authority):
    for n in range(MAX_LIVE_CERTIFICATES):
        assert isinstance(authority.enrol(renewal(), "web-1", NOW + n), bytes)
    assert authority.revoke("web-1", NOW + 60) == MAX_LIVE_CERTIFICATES
    token = authority.make_token(NOW + 61, 60).text()
    again = authority.enrol(body(token), None, NOW + 61)
    assert not authority.revoked("web-1", serial_of(again), NOW + 61)
    assert isinstance(authority.enrol(renewal(), "web-1", NOW + 62, serial_of(again)), bytes)
    assert authority.revoke("web-1", NOW + 63) == 2


# Promise: AGENT-18
def test_a_refusal_because_of_too_many_certificates_costs_no_token(authority):
    for n in range(MAX_LIVE_CERTIFICATES):
        assert isinstance(authority.enrol(renewal(), "web-1", NOW + n), bytes)
    token = authority.make_token(NOW + 60, 60, "web-1").text()
    found = refused(authority.enrol(body(token), None, NOW + 60))
    assert (found.code, "scale0 agent revoke web-1" in found.message) == (429, True)
    authority.revoke("web-1", NOW + 61)
    assert isinstance(authority.enrol(body(token), None, NOW + 62), bytes)


def test_helens_own_certificate_is_renewed_when_a_third_of_its_life_is_left(authority, folder):
    now = time.time()
    old = leaf((folder / "helen.pem").read_bytes())
    assert not authority.renew_own(folder / "helen.pem", now)
    later = now + certificates.HELEN_DAYS * DAY * 0.7
    assert authority.renew_own(folder / "helen.pem", later)
    new, ca = x509.load_pem_x509_certificates((folder / "helen.pem").read_bytes())
    new.verify_directly_issued_by(ca)
    assert new.public_key() == old.public_key()
    kind = x509.SubjectAlternativeName
    assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    assert not authority.renew_own(folder / "helen.pem", later)
    assert not authority.renew_own(folder / "missing.pem", later)


# ---- revocation


# Promise: AGENT-17
def test_a_revoked_name_is_over_and_what_is_signed_afterwards_is_not(authority, folder):
    chain = authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)
    early = int(leaf(chain).not_valid_before_utc.timestamp())
    assert not authority.revoked("web-1", serial_of(chain), early)
    assert authority.revoke("web-1", NOW + 5) == 1
    watching = CertificateAuthority(folder)
    assert watching.revoked("web-1", serial_of(chain), early)
    assert not watching.revoked("web-2", serial_of(chain), early)
    found = refused(authority.enrol(renewal(), "web-1", NOW + 6, serial_of(chain)))
    assert (found.code, "revoked" in found.message) == (403, True)
    assert refused(authority.enrol(renewal(), "web-1", NOW + 6)).code == 403  # nobody says which certificate asks
    again = authority.enrol(body(authority.make_token(NOW + 7, 60).text()), None, NOW + 7)
    assert not authority.revoked("web-1", serial_of(again), early)
    assert authority.revoked("web-1", serial_of(chain), early)
    assert isinstance(authority.enrol(renewal(), "web-1", NOW + 8, serial_of(again)), bytes)
    assert isinstance(authority.enrol(renewal(), "web-1", NOW + 8), bytes)


def test_a_clock_that_went_back_does_not_make_a_new_certificate_stillborn(authority):
    authority.revoke("web-1", NOW)
    chain = authority.enrol(body(authority.make_token(NOW - DAY, 60).text()), None, NOW - DAY)
    assert not authority.revoked("web-1", serial_of(chain), NOW - DAY)


def test_one_certificate_can_be_revoked_by_its_serial(authority):
    first = authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)
    second = authority.enrol(renewal(), "web-1", NOW + 1, serial_of(first))
    assert authority.revoke("web-1", NOW + 2, serial_of(first).lower()) == 1
    assert authority.revoked("web-1", serial_of(first), NOW)
    assert not authority.revoked("web-1", serial_of(second), NOW)
    with pytest.raises(ValueError, match="hexadecimal"):
        authority.revoke("web-1", NOW, "0x5 or so")


def test_a_certificate_of_another_authority_is_judged_by_when_it_begins(authority):
    authority.revoke("web-1", NOW)
    assert authority.revoked("web-1", "0A", NOW - 1)
    assert not authority.revoked("web-1", "0A", NOW + 1)
    assert authority.revoked("web-1", "no serial", NOW + 1)


# Promise: AGENT-17
def test_a_revocation_by_another_process_is_seen_at_the_next_look(authority, folder):
    watching = CertificateAuthority(folder)
    assert not watching.refresh()
    for n in range(3):  # within one tick of the file system's clock
        CertificateAuthority(folder).revoke(f"web-{n}", NOW)
        assert watching.refresh()
        assert watching.revoked(f"web-{n}", "0A", NOW)
    assert not watching.refresh()


def test_what_a_signature_saw_first_is_still_news_to_the_next_look(authority, folder):
    chain = authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)
    CertificateAuthority(folder).revoke("web-1", NOW + 1)
    assert refused(authority.enrol(renewal(), "web-1", NOW + 2, serial_of(chain))).code == 403
    assert authority.refresh()
    assert authority.revoked("web-1", serial_of(chain), NOW)


def test_looking_again_is_cheap_once_the_folder_is_quiet(authority, folder, monkeypatch):
    authority.revoke("web-1", NOW)
    quiet = time.time() - 100
    os.utime(folder / "revoked", (quiet, quiet))
    watching = CertificateAuthority(folder)
    monkeypatch.setattr(revocations, "_entries", lambda _: pytest.fail("it was read again"))
    assert not watching.refresh()
    assert watching.revoked("web-1", "0A", NOW)


def test_a_revocation_that_cannot_be_read_revokes_everything_of_its_name(authority, folder):
    (folder / "revoked" / "web-1.json").write_text("{torn")
    assert authority.refresh()
    assert authority.revoked("web-1", f"{certificates.new_serial(2**60):X}", NOW)
    assert refused(authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)).code == 403


# Promise: AGENT-17
def test_what_was_revoked_stays_so_when_the_folder_cannot_be_read(authority, folder, monkeypatch):
    authority.revoke("web-1", NOW)

    def denied(_: object) -> list[os.DirEntry[str]]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(revocations, "_entries", denied)
    (folder / "revoked" / "web-2.json").write_text("{}")
    authority.refresh()
    assert authority.revoked("web-1", "0A", NOW)


def test_only_names_that_an_agent_can_have_are_revoked_or_given_tokens(authority):
    for name in ("", "../x", "a b", "x" * 65):
        with pytest.raises(ValueError, match="an agent's name"):
            authority.revoke(name, NOW)
    with pytest.raises(ValueError, match="an agent's name"):
        authority.make_token(NOW, 60, "a/b")


# ---- files


# Promise: AGENT-19
def test_every_file_is_for_its_owner_alone(authority, folder):
    authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW)
    authority.make_token(NOW, 60)
    authority.revoke("web-1", NOW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "tokens", folder / "issued")} == {0o700}


def test_an_authority_is_never_written_over(authority, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(AuthorityError, match="already; nothing was changed"):
        create_authority(folder, ["localhost"], NOW)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_without_an_authority_enrolment_is_refused_with_the_reason(tmp_path):
    empty = CertificateAuthority(tmp_path)
    token = f"s1.{'A' * 43}.{'A' * 43}"
    assert "scale0 helen init" in refused(empty.enrol(body(token), None, NOW)).message
    with pytest.raises(AuthorityError, match="scale0 helen init"):
        empty.make_token(NOW, 60)


def test_a_folder_that_cannot_be_written_refuses_and_tells_the_log_alone(authority, folder, caplog):
    token = authority.make_token(NOW, 60).text()
    (folder / "issued" / "web-1.json").write_text("{torn")
    found = refused(authority.enrol(body(token), None, NOW))
    assert (found.code, "log" in found.message) == (503, True)
    secret = read_token(token).secret  # type: ignore[union-attr]
    assert secret not in caplog.text + found.message


def test_serials_say_when_they_were_signed_and_fit_a_certificate():
    for moment in (0, 1, int(NOW * 1e6), 2**63):
        serial = certificates.new_serial(moment)
        assert certificates.issued_us_of(serial) == moment
        assert serial.bit_length() < 160
    assert certificates.new_serial(5) != certificates.new_serial(5)
    assert certificates.issued_us_of(5) is certificates.issued_us_of(2**159 - 1) is None


def test_names_of_helen_are_hosts_and_addresses():
    found = certificates.subject_alternative_names(["helen.example", "10.0.0.1", "[::1]", "helen.example"])
    assert [str(each.value) for each in found] == ["helen.example", "10.0.0.1", "::1"]
    for name in ("", "a..b", "hölle"):
        with pytest.raises(ValueError, match="not a host name"):
            certificates.subject_alternative_names([name])


def test_a_certificate_is_due_when_a_third_of_its_life_is_left(authority):
    found = leaf(authority.enrol(body(authority.make_token(NOW, 60).text()), None, NOW))
    begin = found.not_valid_before_utc
    life = found.not_valid_after_utc - begin
    assert certificates.renewal_at(found) == pytest.approx((begin + life * 2 / 3).timestamp())
    assert life > datetime.timedelta(days=30)
