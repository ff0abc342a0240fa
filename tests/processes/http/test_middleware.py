"""What is tried at the gate: names, origins, pages of others, paths, headers and bodies that no route expects."""

from __future__ import annotations

import json

import httpx
import pytest

from scale0.http.auth import middleware
from scale0.http.auth.middleware import MAX_BODY_BYTES, MAX_TARGET_BYTES
from scale0.http.listener import MAX_HEAD_BYTES
from tests.processes.http.site import served

pytestmark = pytest.mark.processes

CHANGE = {"set": {"heartbeat_liveness": 4}}
HEADERS = (
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "x-frame-options",
)


def version(site) -> int:
    found: int = site.manage("get_config")["version"]
    return found


@pytest.fixture
def unchanged(site):
    """Whatever is tried, the configuration stays as it is."""
    before = version(site)
    yield
    assert version(site) == before


# Promise: HTTP-2
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1:5780@evil.example",
        "evil.example:80",
        "[::2]",
        "localhost:x",
        "localhost:999999",
        "",
        "0x7f000001",
        "2130706433",
    ],
)
def test_another_name_is_not_ours(site, host, unchanged):
    client = site.by_token("admin")
    for method, path in (("GET", "/overview"), ("PATCH", "/config"), ("GET", "/openapi.json")):
        assert client.request(method, path, headers={"Host": host}).status_code in (400, 421)


# Promise: HTTP-2
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "127.0.0.1:65535"])
def test_our_own_names_are(site, host):
    assert site.by_token("viewer").get("/session", headers={"Host": host}).status_code == 200


# Promise: HTTP-2
def test_a_request_with_two_hosts_or_none_is_refused(site):
    for head in (b"Host: localhost\r\nHost: evil.example\r\n", b"", b"Host: a\r\nhost: localhost\r\n"):
        assert site.raw(b"GET /healthz HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n").split()[1] == b"400"
    response = site.raw(b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert response.split()[1] == b"421"


# Promise: HTTP-2
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"X-CSRF-Token": "\u00e9".encode("latin-1")},
        {"Origin": "http://127.0.0.1"},
    ],
    ids=range(5),
)
def test_the_cookie_alone_changes_nothing(site, headers, unchanged):
    client = site.by_cookie("admin", csrf=False)
    assert client.get("/config").status_code == 200
    assert client.patch("/config", json=CHANGE, headers=headers).status_code == 403
    assert client.delete("/session", headers=headers).status_code == 403
    assert client.get("/session").status_code == 200


# Promise: HTTP-2
def test_the_csrf_token_of_somebody_else_changes_nothing(site, unchanged):
    other = site.by_cookie("admin").headers["X-CSRF-Token"]
    client = site.by_cookie("admin", csrf=False)
    assert client.patch("/config", json=CHANGE, headers={"X-CSRF-Token": other}).status_code == 403


# Promise: HTTP-2
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "file://"},
        {"Origin": "http://user@127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=range(9),
)
@pytest.mark.parametrize("by", ["cookie", "token"])
def test_a_page_of_another_site_changes_nothing(site, headers, by, unchanged):
    client = site.by_cookie("admin") if by == "cookie" else site.by_token("admin")
    assert client.patch("/config", json=CHANGE, headers=headers).status_code == 403
    assert client.post("/session", json={"token": "x"}, headers=headers).status_code == 403


# Promise: HTTP-2
def test_our_own_page_may_change_things(site):
    client = site.by_cookie("operator")
    origin = {"Origin": site.server.url, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/silences", json={"agents": ["x"], "seconds": 60}, headers=origin).status_code == 201


# Promise: HTTP-2
def test_nobody_is_invited_to_ask_across_sites(site):
    response = site.nobody().request("OPTIONS", "/config", headers={"Origin": "http://evil.example"})
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


# Promise: HTTP-5
def test_every_answer_carries_the_headers_that_keep_a_browser_strict(site):
    admin = site.by_token("admin")
    answers = [
        site.nobody().get("/session"),
        admin.get("/overview"),
        admin.get("/nothing"),
        admin.get(site.server.url + "/"),
        admin.get(site.server.url + "/nothing"),
        admin.get("/overview", headers={"Host": "evil.example"}),
        admin.request("TRACE", "/overview"),
        admin.patch("/config", content=b"{"),
    ]
    for response in answers:
        assert [name for name in HEADERS if name not in response.headers] == []
        policy = response.headers["content-security-policy"]
        assert "'unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "server" not in response.headers
        if response.url.path.startswith("/api/"):
            assert response.headers["cache-control"] == "no-store"


# Promise: HTTP-5
@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/assets/..%5c..%5cetc",
        "//etc/passwd",
        "/%00",
        "/index.html%00.js",
        "/%ff%fe",
        "/.git/config",
        "/api/v1/tasks/../tokens",
        "/api/v1/%74okens",
        "/API/V1/tokens",
        "/api//v1//tokens",
        "/api/v1/tokens/",
        "/api/v1/tokens;x=1",
        "/" + "a/" * 2_000,
        "/" + "a" * (MAX_TARGET_BYTES + 1),
        "/?" + "a" * (MAX_TARGET_BYTES + 1),
        "*",
    ],
    ids=range(19),
)
def test_an_odd_path_leads_nowhere(site, path):
    response = site.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert response.split()[1] in (b"400", b"401", b"404", b"414"), response[:200]
    assert b"root:" not in response
    assert b"Traceback" not in response


# Promise: HTTP-5
@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -1\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Content-Length: " + b"9" * 30 + b"\r\n",
        b"X: a\0b\r\n",
        b": novalue\r\n",
        b"Bad Name: x\r\n",
        b"X: y\r\n folded\r\n",
        b"Authorization: \xff\xfe\r\n",
        b"Cookie: " + b"a=b; " * 1_000 + b"\r\n",
        b"Cookie: scale0_session\r\n",
        b"Expect: 200-nothing\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
        b"Content-Type: " + b"x" * 5_000 + b"\r\n",
        b"X: " + b"y" * (MAX_HEAD_BYTES + 10) + b"\r\n",
        b"X: y\r\n" * 8_000,
    ],
    ids=range(17),
)
def test_odd_headers_get_an_answer_or_the_end(site, head):
    response = site.raw(b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n", seconds=1.0)
    assert not response or response.split()[1][:1] == b"4", response[:200]
    assert site.nobody().get(site.server.url + "/healthz").status_code == 200


# Promise: HTTP-5
def test_two_requests_in_one_write_are_two_answers(site):
    """A head that hides in another's body is a body."""
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    outer = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    response = site.raw(outer + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(inner) + inner)
    assert response.count(b"HTTP/1.1") == 1
    assert response.split()[1] == b"400"
    assert site.raw(inner + inner, seconds=1.0).count(b"200 OK") == 2


# Promise: HTTP-5
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(site, chunked, unchanged):
    data = json.dumps({"set": {"x": "y" * MAX_BODY_BYTES}}).encode()
    pieces = (data[at : at + 100_000] for at in range(0, len(data), 100_000))
    headers = {"Content-Type": "application/json"}
    try:
        response = site.by_token("admin").patch("/config", content=pieces if chunked else data, headers=headers)
    except httpx.TransportError:
        return  # it closed while we were still talking
    assert response.status_code == 413
    assert str(MAX_BODY_BYTES) in response.json()["message"]


# Promise: HTTP-5
def test_a_stranger_may_send_less_than_an_admin(site):
    headers = {"Content-Type": "application/json"}
    for path, size in (("/session", middleware.MAX_LOGIN_BYTES), ("/silences", middleware.MAX_SMALL_BODY_BYTES)):
        response = site.by_token("operator").post(path, content=b" " * (size + 1), headers=headers)
        assert (response.status_code, response.json()["status"]) == (413, 413)


# Promise: HTTP-5
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"NaN",
        b'{"set": {"a": NaN}}',
        b'{"set": {}, "set": {}}',
        b'{"set": {}, "more": 1}',
        b'{"base": "1"}',
        b'{"base": -1}',
        b'{"base": 1e400}',
        b'{"base": 99999999999999999999}',
        b'{"base": 1.5}',
        b'{"remove": "x"}',
        b'{"set": {"\\ud800": 1}}',
        b'{"set": {"a": {"\\ud800": 1}}}',
        b'{"set": {}, "\\ud800": 1, "\\ud800": 2}',
        b'{"set": "\\ud800"}',
        b"[" * 100_000,
        b'{"set":' * 10_000,
    ],
    ids=range(21),
)
def test_a_body_that_is_not_what_the_route_takes_is_refused(site, data, unchanged):
    response = site.by_token("admin").patch("/config", content=data, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert set(response.json()) >= {"status", "code", "message", "next"}


# Promise: HTTP-5
@pytest.mark.parametrize("config", ['"\\ud800"', '{"a": "\\ud800"}', '{"\\ud800": 1}'])
def test_half_of_a_surrogate_pair_in_a_document_to_check_is_refused(site, config):
    headers = {"Content-Type": "application/json"}
    response = site.by_token("viewer").post("/config/check", content=f'{{"config": {config}}}', headers=headers)
    assert response.status_code == 400
    assert "surrogate" in response.json()["message"]


# Promise: HTTP-5
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_of_another_kind_is_refused(site, kind, unchanged):
    response = site.by_token("admin").patch("/config", content=json.dumps(CHANGE), headers={"Content-Type": kind})
    assert response.status_code == 415


# Promise: HTTP-5
@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=+5", "limit=1_0", "limit=\u0663", "limit=", "limit=1&limit=1", "x=1"),
        *("after=", "after=" + "x" * 300, "status=nothing", "limit=1e2", "%00=1", "limit=1%00"),
    ],
)
def test_a_query_that_is_not_what_the_route_takes_is_refused(site, query):
    assert site.by_token("viewer").get(f"/tasks?{query}").status_code == 400


def test_names_are_compared_in_one_spelling():
    assert middleware.host_name("LocalHost:80") == "localhost"
    assert middleware.host_name("[0:0::1]:80") == middleware.host_name("[::1]") == "::1"
    assert middleware.host_name("a:b:c") is None
    assert middleware.host_name("[localhost]") is None
    assert middleware.host_name("") is None
    assert middleware.host_name("localhost:\u0663") is None


# Promise: HTTP-2
def test_a_name_of_the_settings_is_ours_too(broker, tmp_path):
    with served(tmp_path, broker, hosts=["watch.example"]) as other:
        client = other.by_token("viewer")
        assert client.get("/session", headers={"Host": "Watch.Example:8443"}).status_code == 200
        assert client.get("/session", headers={"Host": "other.example"}).status_code == 421
