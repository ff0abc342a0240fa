"""The check `http`, against real servers on loopback."""

from __future__ import annotations

import time

import pytest

from tests.processes.checks.servers import answer, certificate, hold, metrics, page, run, tcp_server, tls_server

pytestmark = pytest.mark.processes


def url(port, path="/"):
    return f"http://127.0.0.1:{port}{path}"


def test_a_page_tells_status_time_and_size():
    seen: list[bytes] = []
    with tcp_server(page(answer(200, b"all is well"), seen=seen)) as port:
        found = run("http", url=url(port, "/health?full=1"), expect="is well")
    assert found.state == "ok"
    values = metrics(found)
    assert (values["status"].value, values["size_bytes"].value, values["redirects"].value) == (200, 11, 0)
    assert seen[0].startswith(b"GET /health?full=1 HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in seen[0]


@pytest.mark.parametrize(
    ("status", "wanted", "state"),
    [(500, "200:399", "critical"), (404, "200:399", "critical"), (404, "404:404", "ok"), (204, "200:299", "ok")],
)
def test_the_status_is_judged(status, wanted, state):
    with tcp_server(page(answer(status))) as port:
        assert run("http", url=url(port), status=wanted).state == state


def test_a_page_without_its_text_is_critical():
    with tcp_server(page(answer(200, b"maintenance"))) as port:
        found = run("http", url=url(port), expect="welcome")
    assert found.state == "critical"
    assert "welcome" in found.message


def test_a_page_is_read_so_far_and_no_further():
    with tcp_server(page(answer(200, b"a" * 50_000 + b"end"))) as port:
        found = run("http", url=url(port), max_bytes=1_000, expect="end")
    assert found.state == "critical"
    assert metrics(found)["size_bytes"].value == 1_000


def test_chunks_are_put_together():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwel\r\n4\r\ncome\r\n0\r\n\r\n"
    with tcp_server(page(chunked)) as port:
        assert run("http", url=url(port), expect="welcome").state == "ok"


def test_redirects_are_followed_and_counted():
    seen: list[bytes] = []
    moves = (answer(302, b"", "Location: /b"), answer(308, b"", "Location: c?d=é"), answer(200, b"there"))
    with tcp_server(page(*moves, seen=seen)) as port:
        found = run("http", url=url(port, "/a"), expect="there", headers={"Authorization": "x"})
    assert found.state == "ok"
    assert metrics(found)["redirects"].value == 2
    assert [request.split(b" ")[1] for request in seen][:2] == [b"/a", b"/b"]
    assert all(b"Authorization: x" in request for request in seen)


def test_redirects_are_bounded():
    with tcp_server(page(answer(302, b"", "Location: /again"))) as port:
        found = run("http", url=url(port), redirects=3)
        unfollowed = run("http", url=url(port), redirects=0, status="302:302")
    assert found.state == "critical"
    assert "more than 3 times" in found.message
    assert unfollowed.state == "ok"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://[::1", "http://u:p@127.0.0.1/"])
def test_a_redirect_never_leaves_http(target):
    with tcp_server(page(answer(302, b"", f"Location: {target}"))) as port:
        found = run("http", url=url(port))
    assert found.state == "critical"
    assert "is not allowed" in found.message


def test_headers_go_to_the_first_host_only():
    seen: list[bytes] = []
    with (
        tcp_server(page(answer(200), seen=seen)) as other,
        tcp_server(page(answer(307, b"", f"Location: {url(other)}"))) as port,
    ):
        assert run("http", url=url(port), method="POST", body="secret", headers={"Cookie": "secret"}).state == "ok"
    assert b"secret" not in seen[0]


def test_a_body_and_a_head_can_be_sent():
    seen: list[bytes] = []
    with tcp_server(page(answer(200), seen=seen)) as port:
        assert run("http", url=url(port), method="HEAD").state == "ok"
        assert run("http", url=url(port), method="POST", body='{"a": 1}').state == "ok"
    assert seen[0].startswith(b"HEAD / ")
    assert b"Content-Length: 8" in seen[1]


def test_a_header_that_would_be_two_is_refused():
    with tcp_server(page(answer(200))) as port:
        found = run("http", url=url(port), headers={"X": "a\r\nY: b"})
    assert found.state == "unknown"
    assert "headers" in found.message


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-any\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", b""]
)
def test_what_is_not_http_is_critical(reply):
    with tcp_server(page(reply)) as port:
        found = run("http", url=url(port))
    assert found.state == "critical"
    assert "failed:" not in found.message


# Promise: CHECK-1
@pytest.mark.parametrize("silent", [True, False])
def test_a_server_that_dribbles_ends_with_the_timeout(silent):
    def dribble(connection):
        connection.recv(1_000)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for number in range(10_000):
            connection.sendall(f"X-{number}: y\r\n".encode() if number < 50 else b"z")
            time.sleep(0.01)

    with tcp_server(hold if silent else dribble) as port:
        found = run("http", timeout=0.5, url=url(port))
    assert found.state == "critical"
    assert "no answer in time" in found.message
    assert found.seconds is not None
    assert found.seconds < 0.5 + 1


@pytest.mark.parametrize("wrong", ["ftp://x/", "http://", "http://x:99999/", "x", "http://u:p@x/", "http://x:0/"])
def test_what_is_no_address_is_unknown(wrong):
    found = run("http", url=wrong)
    assert found.state == "unknown"
    assert "arg url" in found.message


def test_certificates_are_verified_unless_that_is_turned_off(tmp_path):
    pem = certificate(tmp_path, 30)
    with tls_server(pem, page(answer(200, b"secret"))) as port:
        place = f"https://127.0.0.1:{port}/"
        distrusted = run("http", url=place)
        trusted = run("http", url=place, ca_file=str(pem), expect="secret")
        careless = run("http", url=place, verify=False)
    assert distrusted.state == "critical"
    assert "certificate" in distrusted.message
    assert trusted.state == careless.state == "ok"
    assert metrics(trusted)["days_left"].value == pytest.approx(30, abs=0.1)


def test_a_redirect_never_goes_back_to_http(tmp_path):
    pem = certificate(tmp_path, 30)
    with tls_server(pem, page(answer(301, b"", "Location: http://127.0.0.1/"))) as port:
        found = run("http", url=f"https://127.0.0.1:{port}/", ca_file=str(pem))
    assert found.state == "critical"
    assert "from https to http" in found.message


def test_authorities_that_cannot_be_read_are_reported(tmp_path):
    found = run("http", url="https://127.0.0.1:1/", ca_file=str(tmp_path / "none"))
    assert found.state == "unknown"
    (tmp_path / "empty").touch()
    assert run("http", url="https://127.0.0.1:1/", ca_file=str(tmp_path / "empty")).state == "unknown"
