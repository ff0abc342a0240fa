"""The API's own document, and schemathesis against it: with each role, and with none."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.management.site import ROLES, Site

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EXAMPLES = 6
"""For each operation and role."""
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
SERVER_STATES = ("disable", "drain")
"""What would end the test's own network."""


def document(site: Site) -> dict:
    found: dict = httpx.get(site.server.url + "/api/v1/openapi.json", trust_env=False).json()
    return found


# Promise: HTTP-8
def test_every_operation_says_who_may_use_it_and_how_it_says_no(site):
    found = document(site)
    assert found["openapi"].startswith("3.")
    operations = [one for path in found["paths"].values() for one in path.values()]
    assert len(operations) >= 40
    assert all("x-role" in one and "default" in one["responses"] and one["summary"] for one in operations)
    assert {one["x-role"] for one in operations} == {None, *ROLES}


# Promise: HTTP-5, HTTP-8
@pytest.mark.parametrize("role", ["none", *ROLES])
def test_whatever_the_document_allows_is_answered_as_it_says(site, role):
    schema = schemathesis.openapi.from_dict(document(site))
    schema.config.update(base_url=site.server.url)
    tried: set[tuple[str, str]] = set()

    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]
        # Each has a token of its own: one of them ends it.
        headers = {} if role == "none" else {"Authorization": f"Bearer {site.token(role)}"}
        try_all(operation, headers, tried)
    assert len(tried) >= 40
    # It still does what it did, for whoever may.
    assert site.by_token("admin").get("/overview").status_code == 200


def try_all(operation, headers: dict[str, str], tried: set[tuple[str, str]]) -> None:
    """Some cases of one operation."""

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def answered(case):
        if any(word in str(case.formatted_path) for word in SERVER_STATES):
            return
        said = case.call(headers=dict(headers))
        tried.add((operation.method.upper(), operation.path))
        case.validate_response(said, checks=CHECKS)
        if not headers and operation.definition.raw["x-role"] is not None:
            assert said.status_code == 401

    answered()
