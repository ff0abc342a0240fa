"""Our agent and certificates: HelenProcess's, and its own (PROTOCOL 10)."""

from __future__ import annotations

import ssl

import pytest

from tests.fakes.certificates import Authority
from tests.wire.monitoring.agent_under_test import agent_under_test

pytestmark = [pytest.mark.processes, pytest.mark.slow]


# Promise: AGENT-15
def test_a_helen_whom_its_authority_does_not_know_receives_nothing(tmp_path) -> None:
    """Neither one of another authority, nor one whose certificate names another place; the right one is then served."""
    with agent_under_test() as (agent, [helen]):
        right = helen.context
        strange = Authority(tmp_path).helen_context()
        elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        elsewhere.load_cert_chain(*agent.certificate)  # signed, but for no host at all
        for context in (strange, elsewhere):
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(agent.config["server_ca"])
            helen.context = context
            received = b""
            try:
                connection = helen.accept()
            except OSError:
                continue
            try:
                received = connection.read_to_end()
            finally:
                connection.close()
            assert received == b""
        assert "certificate" in agent.log_text()
        helen.context = right
        assert agent.connected_to(helen).run("fine")["state"] == "ok"


def test_a_certificate_near_its_end_does_not_keep_it_from_a_helen_of_version_1() -> None:
    """It may try to renew it first. A Helen who does not know the word says so; then it must come with hello."""
    with agent_under_test(days=2) as (agent, [helen]):
        for _ in range(3):
            connection = helen.accept()
            agent.connection = connection
            first = connection.message()
            if first.command == "hello":
                break
            connection.send(b"error unknown command\n")
            agent.disconnect()
        assert first.command == "hello"
        assert connection.run("fine")["state"] == "ok"
