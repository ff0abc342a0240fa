"""Every route with every role, generated from the routes themselves: nobody gets more than their rank allows."""

# Promise: HTTP-1
from __future__ import annotations

import re

import httpx
import pytest
from litestar import get
from litestar.exceptions import ImproperlyConfiguredException

from scale0.broker.admin.access import RANKS
from scale0.broker.main.http_settings import HttpSettings
from scale0.http.app import Route, create_core, table
from scale0.http.broker_client import BrokerClient
from scale0.http.routes import ROUTES
from tests.processes.http.site import ROLES, Site

pytestmark = pytest.mark.processes

NONE = "none"
COOKIE, TOKEN = "cookie", "token"
SAFE_VALUES = {
    "number": "1",
    "token_id": "0" * 12,
    "command": "reload",
}
"""For parameters in paths: whoever is let in changes nothing that other tests see."""


def routes(settings: HttpSettings | None = None) -> list[Route]:
    app = create_core(settings or HttpSettings(), BrokerClient("tcp://127.0.0.1:1"))
    return sorted(table(app), key=lambda one: (one.path, one.method))


ALL = routes()
PUBLIC = {
    ("POST", "/api/v1/session"),
    ("GET", "/api/v1/session"),
    ("GET", "/healthz"),
    ("GET", "/"),
    ("GET", "/{path}"),
}


def url_of(route: Route, site: Site) -> str:
    def value(found: re.Match[str]) -> str:
        return SAFE_VALUES.get(found[1], "nobody")

    return site.server.url + re.sub(r"\{(\w+)\}", value, route.path)


def asked(route: Route, client: httpx.Client, site: Site) -> int:
    """What the route says to this client: a body is sent that no route takes, so nothing is changed."""
    content = None if route.method == "GET" else b"\xff"
    with client.stream(route.method, url_of(route, site), content=content) as response:
        return response.status_code


def test_only_these_routes_are_public():
    assert {(one.method, one.path) for one in ALL if one.role is None} == PUBLIC


def test_what_changes_something_needs_more_than_a_viewer():
    own = {("DELETE", "/api/v1/session"), ("POST", "/api/v1/config/check")}
    changing = [one for one in ALL if one.method != "GET" and one.role is not None]
    assert {(one.method, one.path) for one in changing if one.role == "viewer"} == own


def test_a_route_without_a_role_does_not_start():
    @get("/api/v1/forgotten")
    async def forgotten() -> None: ...

    @get("/api/v1/mistyped", opt={"role": "root"})
    async def mistyped() -> None: ...

    for handler in (forgotten, mistyped):
        with pytest.raises((LookupError, ImproperlyConfiguredException)):
            create_core(HttpSettings(), BrokerClient("tcp://127.0.0.1:1"), (*ROUTES, [handler]))


@pytest.mark.parametrize("by", [COOKIE, TOKEN])
@pytest.mark.parametrize("role", [NONE, *ROLES])
def test_every_route_lets_in_whom_it_says(site, role, by):
    wrong = []
    for route in ALL:
        if route.role is None:
            continue
        client = who(site, role, by)
        status = asked(route, client, site)
        if role == NONE:
            right = status == 401
        elif RANKS[role] < RANKS[route.role]:
            right = status == 403
        else:
            right = status not in (401, 403) and status < 500
        if not right:
            wrong.append(f"{route.method} {route.path} ({route.role}) answers {status}")
        if (route.method, route.path) == ("DELETE", "/api/v1/session"):
            PEOPLE.pop((role, by), None)
    assert not wrong, "\n".join(wrong)


PEOPLE: dict[tuple[str, str], httpx.Client] = {}


def who(site: Site, role: str, by: str) -> httpx.Client:
    """Somebody of this role; whoever was logged out comes again."""
    if (role, by) not in PEOPLE:
        if role == NONE:
            PEOPLE[role, by] = site.nobody()
        else:
            PEOPLE[role, by] = site.by_cookie(role) if by == COOKIE else site.by_token(role)
    return PEOPLE[role, by]


@pytest.mark.parametrize("route", [one for one in ALL if one.role is None], ids=lambda one: f"{one.method} {one.path}")
def test_a_public_route_needs_nobody(site, route):
    status = asked(route, site.nobody(), site)
    assert status == 401 if route.path.endswith("/session") and route.method == "GET" else status not in (401, 403)
    assert status < 500
