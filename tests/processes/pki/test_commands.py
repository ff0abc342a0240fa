"""The commands `scale0 helen init` and `token`, `scale0 agent enrol`, `renew` and `revoke`."""

from __future__ import annotations

import json
import time

import click
import pytest
from click.testing import CliRunner

from scale0.cli.common import errors
from scale0.cli.monitoring.agent import enrol, renew, revoke
from scale0.cli.monitoring.helen import init, token
from scale0.config import AgentConfig, HelenConfig
from scale0.config.edge.files import read_config
from scale0.monitoring.pki.authority import CertificateAuthority
from scale0.monitoring.pki.tokens import read_token
from tests.processes.pki.enrolment_helen import EnrolmentHelen


def run(command, *words, stdin=None):
    """Output, errors and next step, as `scale0` shows them, and the exit code."""
    found = CliRunner().invoke(command, [str(word) for word in words], input=stdin, standalone_mode=False)
    error = found.exception
    if isinstance(error, errors.CommandError):
        return found.output + f"scale0: {error.message}\n  next: {error.next_step}\n", error.status
    if isinstance(error, click.ClickException):
        return found.output + error.format_message(), error.exit_code
    assert error is None, error
    return found.output, found.exit_code


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "helen"
    output, code = run(init, folder, "--name", "helen.example", "--port", "4170")
    assert code == 0, output
    return folder


def test_init_makes_what_helen_starts_from(made):
    config = read_config(made / "helen.zpl", HelenConfig)
    assert (config.bind, config.advertise, config.helen_port) == ("*", "helen.example", 4170)
    assert config.identity.startswith("helen-")
    assert {config.certificate, config.private_key, config.client_ca} == {
        str(made / name) for name in ("helen.pem", "helen-key.pem", "agents-ca.pem")
    }
    assert config.data_dir == str(made)


def test_without_a_name_helen_is_for_this_machine_alone(tmp_path):
    assert run(init, tmp_path / "helen")[1] == 0
    config = read_config(tmp_path / "helen" / "helen.zpl", HelenConfig)
    assert (config.bind, config.advertise) == ("127.0.0.1", "")


def test_init_writes_over_nothing(made):
    before = (made / "ca-key.pem").read_bytes()
    output, code = run(init, made)
    assert (code, "nothing was changed" in output) == (1, True)
    assert (made / "ca-key.pem").read_bytes() == before
    (made / "helen.zpl").unlink()
    assert "ca.pem already" in run(init, made)[0]


@pytest.mark.parametrize("name", ["", "a..b", "hölle"])
def test_a_name_that_is_no_host_is_refused_before_anything_is_made(tmp_path, name):
    output, code = run(init, tmp_path / "helen", "--name", name)
    assert (code, "--name" in output) == (2, True)
    assert not (tmp_path / "helen").exists()


# Promise: AGENT-19
def test_init_shows_no_secret(tmp_path):
    output, _ = run(init, tmp_path / "helen")
    key = (tmp_path / "helen" / "ca-key.pem").read_text().splitlines()[1]
    assert key not in output
    assert "next: scale0 helen --config" in output


def test_token_prints_one_line_that_says_where_helen_is(made):
    output, code = run(token, "--data-dir", made, "--name", "web-1", "--minutes", "5")
    assert code == 0
    found = read_token(output.strip())
    assert found is not None
    assert (found.name, found.address) == ("web-1", "helen.example:4170")
    (kept,) = (made / "tokens").glob("*.json")
    assert json.loads(kept.read_text())["expires"] == pytest.approx(time.time() + 300, abs=30)


def test_token_in_json(made):
    output, _ = run(token, "--data-dir", made, "--at", "10.0.0.1", "--json")
    found = json.loads(output)
    assert (found["place"], found["name"]) == ("10.0.0.1:4166", "")
    assert read_token(found["token"]) is not None


def test_token_without_an_authority_says_what_to_do(tmp_path):
    output, code = run(token, "--data-dir", tmp_path)
    assert (code, "scale0 helen init" in output, "--data-dir" in output) == (1, True, True)
    assert run(token, "--data-dir", tmp_path, "--minutes", "0")[1] == 2


def test_a_token_for_a_name_that_cannot_be_is_refused(made):
    for words in (("--name", "a b"), ("--at", "a b")):
        output, code = run(token, "--data-dir", made, *words)
        assert (code, words[0] in output) == (2, True)


@pytest.mark.processes
def test_a_machine_enrols_renews_and_is_revoked(made, tmp_path):
    with EnrolmentHelen(CertificateAuthority(made), made) as helen:
        text = run(token, "--data-dir", made, "--at", f"127.0.0.1:{helen.address.port}", "--name", "web-1")[0]
        output, code = run(enrol, "--token", "-", "--dir", tmp_path / "agent", stdin=text)
        assert (code, "web-1 is enrolled" in output) == (0, True), output
        assert text.strip() not in output
        config = tmp_path / "agent" / "agent.zpl"
        assert read_config(config, AgentConfig).helen_addresses() == (("127.0.0.1", helen.address.port),)
        assert "not due" in run(renew, "--config", config)[0]
        assert json.loads(run(renew, "--config", config, "--now", "--json")[0])["renewed"] is True
        output, code = run(revoke, "web-1", "--data-dir", made)
        assert (code, "revoked 2 certificates of web-1" in output) == (0, True)
        output, code = run(renew, "--config", config, "--now")
        assert (code, "revoked" in output) == (1, True)
        # The token is used up.
        output, code = run(enrol, "--token", text.strip(), "--dir", tmp_path / "second")
        assert (code, "was used" in output, text.strip() in output) == (1, True, False)


# Promise: AGENT-19
def test_enrol_needs_a_token_and_never_repeats_it(tmp_path):
    output, code = run(enrol, "127.0.0.1", "--dir", tmp_path)
    assert (code, "--token is required" in output) == (2, True)
    output, code = run(enrol, "127.0.0.1", "--token", "s1.oops", "--dir", tmp_path)
    assert (code, "is not a token" in output, "oops" in output) == (2, True, False)


def test_enrol_must_know_where_helen_is(tmp_path):
    text = f"s1.{'A' * 43}.{'B' * 43}"
    output, code = run(enrol, "--token", text, "--dir", tmp_path)
    assert (code, "does not contain Helen's address" in output, text in output) == (2, True, False)
    assert run(enrol, "a b", "--token", text, "--dir", tmp_path)[1] == 2
    output, code = run(enrol, "127.0.0.1:1", "--token", text, "--dir", tmp_path / "agent")
    assert (code, "cannot connect" in output, text in output) == (3, True, False)


def test_revoke_says_when_it_knows_of_no_certificate_and_revokes_all_the_same(made):
    output, code = run(revoke, "web-9", "--data-dir", made)
    assert (code, "no valid certificate that is recorded" in output) == (0, True)
    assert CertificateAuthority(made).revoked("web-9", "0A", time.time() - 5)
    assert json.loads(run(revoke, "web-9", "--data-dir", made, "--json")[0]) == {"name": "web-9", "revoked": 0}
    assert run(revoke, "a b", "--data-dir", made)[1] == 2
    assert run(revoke, "web-9", "--serial", "xyz", "--data-dir", made)[1] == 2
    assert run(revoke, "web-9", "--data-dir", made / "missing")[1] == 2
