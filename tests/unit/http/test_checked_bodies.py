"""A handler gets the body that was checked: nothing decodes it a second time."""

# Promise: HTTP-5
from __future__ import annotations

from typing import Any

import pytest
from litestar import Litestar, Request, post
from litestar.datastructures import State
from litestar.params import JSONBody
from litestar.testing import TestClient

from scale0.http import validation
from scale0.http.app import problem_response
from scale0.http.problem import ApiProblem
from scale0.http.routes.configuration import ConfigChanges, ConfigDraft


@post("/draft")
async def draft(request: Request[Any, Any, Any], data: JSONBody[ConfigDraft]) -> dict[str, Any]:
    assert isinstance(request, validation.CheckedRequest)
    return {"is_same": data is request.checked, "config": data.config}


@post("/optional")
async def optional(data: JSONBody[ConfigChanges | None] = None) -> dict[str, Any]:
    return {"remove": None if data is None else data.remove}


@pytest.fixture
def client():
    app = Litestar(
        [draft, optional],
        before_request=validation.check,
        request_class=validation.CheckedRequest,
        exception_handlers={ApiProblem: problem_response},
        state=State({"queries": {}}),
        openapi_config=None,
    )
    with TestClient(app) as client:
        yield client


HEADERS = {"Content-Type": "application/json"}


def test_the_checked_value_is_what_the_handler_gets(client):
    body = b'{"config":{"a":[3e-310,1.5,7],"b":{"c":null}}}'
    answer = client.post("/draft", content=body, headers=HEADERS).json()
    assert answer == {"is_same": True, "config": {"a": [3e-310, 1.5, 7], "b": {"c": None}}}


def test_a_body_may_be_absent_where_it_is_optional(client):
    assert client.post("/optional").json() == {"remove": None}
    assert client.post("/optional", content=b'{"remove":["a"]}', headers=HEADERS).json() == {"remove": ["a"]}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "9" * 30])
def test_a_number_out_of_range_is_refused(client, number):
    answer = client.post("/draft", content=b'{"config":{"a":%b}}' % number.encode(), headers=HEADERS)
    assert answer.status_code == 400
    assert f"{number} is not a number of JSON, or is out of range" in answer.text


@pytest.mark.parametrize(
    "body", [b'{"config":{"a":1,"a":1}}', b'{"config":[]}', b"{}", b"", b'{"config":{"a":"\\ud800"}}']
)
def test_an_invalid_body_is_refused(client, body):
    assert client.post("/draft", content=body, headers=HEADERS).status_code == 400
