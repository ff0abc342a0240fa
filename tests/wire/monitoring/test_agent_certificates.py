"""Our agent and certificates: Helen's, and its own (PROTOCOL 10)."""

from __future__ import annotations

import ssl

import pytest

from tests.wire.monitoring.agent_process import house
from tests.wire.monitoring.authority import new_authority
from tests.wire.monitoring.helen_1 import Helen1

pytestmark = [pytest.mark.processes, pytest.mark.slow]


# Promise: AGENT-15
def test_a_helen_whom_its_authority_does_not_know_hears_nothing(tmp_path) -> None:
    """Neither one of another authority, nor one whose certificate names another place; the right one is then served."""
    with house(Helen1) as (agent, [helen]):
        right = helen.context
        strange = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        papers = new_authority(tmp_path).helen()
        strange.load_cert_chain(papers.certificate, papers.key)
        elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        elsewhere.load_cert_chain(agent.papers.certificate, agent.papers.key)  # signed, but for no place at all
        for context in (strange, elsewhere):
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(agent.process.config["server_ca"])
            helen.context = context
            heard = b""
            try:
                line = helen.accept()
            except OSError:
                continue
            try:
                heard = line.rest()
            finally:
                line.close()
            assert heard == b""
        helen.context = right
        assert agent.on_line(helen).run("fine")["state"] == "ok"


def test_a_certificate_near_its_end_does_not_keep_it_from_a_helen_of_version_1() -> None:
    """It may try to renew it first. A Helen who does not know the word says so; then it must come with hello."""
    with house(Helen1, days=2) as (agent, [helen]):
        for _ in range(3):
            line = helen.accept()
            agent.line = line
            first = line.message()
            if first.command == "hello":
                break
            line.send(b"error unknown command\n")
            agent.hang_up()
        assert first.command == "hello"
        assert line.run("fine")["state"] == "ok"
