"""Logging in and out: passwords, tokens, one-time links, and what is good for nothing."""

# Promise: HTTP-3
from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie

import psutil
import pytest

from scale0.http.routes.access import LINK_INVALID
from tests.fakes.waiting import until
from tests.processes.http.site import NAMES, PASSWORD, ROLES

pytestmark = pytest.mark.processes

FORGED = (
    "s0_" + "0" * 64,
    "s0_" + "A" * 64,
    "s0_" + "0" * 63,
    "",
    "Bearer",
    "s0_" + "0" * 10_000,
    "s1.x.y",
    "\u0660" * 67,
)


@pytest.mark.parametrize("role", ROLES)
def test_a_password_gives_a_session(site, role):
    client = site.nobody()
    response = client.post("/session", json={"name": NAMES[role], "password": PASSWORD})
    assert response.status_code == 200
    found = response.json()
    assert (found["name"], found["role"]) == (NAMES[role], role)
    cookie = SimpleCookie(response.headers["set-cookie"])["scale0_session"]
    assert cookie["httponly"]
    assert (cookie["samesite"].lower(), cookie["path"], cookie["secure"]) == ("strict", "/", "")
    assert found["csrf"] == hashlib.sha256(f"csrf:{cookie.value}".encode()).hexdigest()
    assert cookie.value not in response.text
    assert client.get("/session").json() == found


def test_a_session_ends_when_it_is_ended(site):
    client = site.by_cookie("viewer")
    stolen = client.cookies["scale0_session"]
    assert client.get("/overview").status_code == 200
    response = client.delete("/session")
    assert response.json() == {"revoked": 1}
    assert "scale0_session" not in client.cookies
    thief = site.with_token(stolen)
    assert thief.get("/overview").status_code == 401


def test_a_wrong_password_tells_nothing(site):
    answers = [
        site.nobody().post("/session", json={"name": name, "password": "wrong"}) for name in ("vera", "nobody-at-all")
    ]
    assert {one.status_code for one in answers} == {401}
    assert answers[0].json() == answers[1].json()
    assert not any("set-cookie" in one.headers for one in answers)


def test_a_token_gives_a_session_of_its_own(site):
    token = site.token("operator", name="robot")
    client = site.nobody()
    found = client.post("/session", json={"token": token}).json()
    assert (found["name"], found["role"]) == ("robot", "operator")
    assert client.cookies["scale0_session"] != token
    client.delete("/session", headers={"X-CSRF-Token": found["csrf"]})
    robot = site.with_token(token)
    assert robot.get("/session").status_code == 200


def test_the_token_file_of_the_brokers_machine_is_an_admin(site):
    client = site.with_token(site.broker.token)
    assert client.get("/session").json()["role"] == "admin"


def test_a_link_lets_exactly_one_in(site):
    once = site.link("admin", name="link-1")
    clients = [site.nobody() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: one.post("/session", json={"once": once}).status_code, clients))
    assert sorted(answers) == [200] + [401] * 7
    inside = [one for one, status in zip(clients, answers, strict=True) if status == 200]
    assert inside[0].get("/session").json()["name"] == "link-1"
    assert site.nobody().post("/session", json={"once": once}).status_code == 401
    # Of all sessions that were begun, the others' have ended.
    rows = site.by_token("admin", name="looker").get("/tokens", params={"limit": 1000}).json()["items"]
    assert [row["name"] for row in rows if row["name"].endswith("-1")] == ["link-1"]


# Promise: HTTP-12
def test_a_link_is_no_token(site):
    once = site.link("admin", name="link-2")
    assert [site.nobody().post("/session", json={"token": once}).status_code for _ in range(3)] == [401] * 3
    assert site.with_token(once).get("/session").status_code == 401
    cookie = site.nobody()
    cookie.cookies.set("scale0_session", once)
    assert cookie.get("/session").status_code == 401
    assert site.nobody().post("/session", json={"once": once}).status_code == 200


# Promise: HTTP-12
def test_no_token_that_is_derived_from_a_link_is_a_link(site):
    client = site.nobody()
    client.post("/session", json={"once": site.link("admin", name="once-3")})
    session = client.cookies["scale0_session"]
    derived = site.nobody()
    assert derived.post("/session", json={"token": session}).status_code == 200
    for token in (session, derived.cookies["scale0_session"]):
        answer = site.nobody().post("/session", json={"once": token})
        assert (answer.status_code, answer.json()["message"]) == (401, LINK_INVALID)


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_a_forged_token_gets_nothing(site, forged):
    for headers in (
        {"Authorization": f"Bearer {forged}".strip().encode()},
        {"Cookie": f"scale0_session={forged}".encode()},
    ):
        assert site.nobody().get("/overview", headers=headers).status_code in (401, 431)
    if forged:
        assert site.nobody().post("/session", json={"token": forged}).status_code in (400, 401)


def test_a_token_that_expires_gets_nothing_any_more(site):
    client = site.by_token("viewer", ttl=1.5)
    assert client.get("/session").status_code == 200
    until(lambda: client.get("/session").status_code == 401, "the token expires", 10)
    assert client.get("/overview").status_code == 401


def test_a_token_that_is_revoked_gets_nothing_any_more(site):
    admin, client = site.by_token("admin"), site.by_cookie("operator")
    known = {row["id"] for row in admin.get("/tokens", params={"limit": 1000}).json()["items"]}
    mine = hashlib.sha256(client.cookies["scale0_session"].encode()).hexdigest()[:12]
    assert mine in known
    assert client.get("/clients").status_code == 200
    assert admin.delete(f"/tokens/{mine}").json() == {"revoked": 1}
    assert client.get("/clients").status_code == 401
    assert client.patch("/config", json={"set": {"heartbeat_liveness": 4}}).status_code == 401
    assert admin.delete(f"/tokens/{mine}").status_code == 404


def test_a_token_that_the_broker_itself_revoked_changes_nothing(site):
    client = site.by_token("operator", name="gone")
    assert client.get("/session").status_code == 200  # the server has it in mind for a second
    site.manage("revoke_token", name="gone")
    assert client.patch("/config", json={"set": {"heartbeat_liveness": 4}}).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "ada"},
        {"password": "x"},
        {"name": "ada", "password": PASSWORD, "token": "s0_"},
        {"token": "x", "once": "y"},
        {"name": "ada", "password": PASSWORD, "role": "admin"},
        {"name": ["ada"], "password": PASSWORD},
        {"name": "ada", "password": "x" * 1_025},
        {"name": "a" * 129, "password": "x"},
        [],
        None,
    ],
    ids=range(11),
)
def test_a_login_that_is_none_is_refused(site, body):
    response = site.nobody().post("/session", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert PASSWORD not in response.text


def test_no_secret_is_in_a_log_or_in_the_process_list(site):
    token = site.token("viewer")
    client = site.with_token(token)
    client.get("/overview")
    client.post("/session", json={"token": token})
    cookie = client.cookies["scale0_session"]
    process = psutil.Process(site.server.process.pid)
    environment = {key: value for key, value in process.environ().items() if key != "PYTEST_CURRENT_TEST"}
    texts = [site.server.log_text(), " ".join(process.cmdline()), str(environment), site.broker.log.read_text()]
    for secret in (token, cookie, PASSWORD, site.broker.token):
        assert not any(secret in text for text in texts)
