"""The API's own document, and schemathesis against it: with each role, and without one."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.processes.http.site import ROLES, Site, served

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

EXAMPLES = 8
"""For each operation; every role says each of them."""
STREAMS = 2
STREAM_SECONDS = 3.0
"""A stream has no end: schemathesis listens for as long as an answer may take."""
ANSWER_SECONDS = 30.0
PARTS = 4
"""Of the operations, so that none takes as long as a test may."""
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
SERVER_STATES = ("disable", "drain")
"""What would end the test's own network."""


def document(site: Site) -> dict:
    found: dict = site.by_token("viewer").get("/openapi.json").json()
    return found


# Promise: HTTP-8
def test_the_document_is_for_viewers_unless_it_is_open(site, tmp_path):
    assert site.nobody().get("/openapi.json").status_code == 401
    with served(tmp_path, site.broker, openapi_open=True) as opened:
        assert opened.nobody().get("/openapi.json").json()["paths"]


# Promise: HTTP-8
def test_every_operation_says_who_may_use_it_and_how_it_says_no(site):
    found = document(site)
    assert found["openapi"].startswith("3.")
    operations = [one for path in found["paths"].values() for one in path.values()]
    assert len(operations) >= 40
    assert all("x-role" in one and "default" in one["responses"] and one["summary"] for one in operations)
    assert {one["x-role"] for one in operations} == {None, *ROLES}


# Promise: HTTP-5, HTTP-8
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_the_document_allows_is_answered_as_it_says(site, part):
    schema = schemathesis.openapi.from_dict(document(site))
    schema.config.update(base_url=site.server.url)
    tokens = {role: site.token(role) for role in ROLES}
    operations = [found.ok() for found in schema.get_all_operations()][part::PARTS]  # type: ignore[union-attr]
    tried: set[tuple[str, str]] = set()
    for operation in operations:
        # Whoever logs out ends the token: that one is nobody else's.
        ends = operation.path.endswith("/session")
        mine = {role: site.token(role) for role in ROLES} if ends else tokens
        try_all(operation, [None, *mine.values()], tried)
    assert len(tried) == len(operations) >= 10
    # It still does what it did, for whoever may.
    assert site.by_token("admin").get("/overview").status_code == 200


def try_all(operation: Any, tokens: list[str | None], tried: set[tuple[str, str]]) -> None:
    """Some cases of one operation, each sent with every token: to generate one takes longer than to answer it."""
    streams = operation.path.endswith("/stream")

    @given(case=operation.as_strategy())
    @settings(
        max_examples=STREAMS if streams else EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def answered(case):
        tried.add((operation.method.upper(), operation.path))
        if any(word in str(case.formatted_path) for word in SERVER_STATES):
            return
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            response = case.call(headers=headers, timeout=STREAM_SECONDS if streams else ANSWER_SECONDS)
            case.validate_response(response, checks=CHECKS)
            if token is None and operation.definition.raw["x-role"] is not None:
                assert response.status_code == 401

    answered()
