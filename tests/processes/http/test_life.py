"""The server's lifetime: it prints when it serves, ends when it should, and uses TLS if it has a certificate."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from scale0.http.console_pages import INDEX, read_pages
from scale0.http.routes.access import LINK_INVALID
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.http.site import PASSWORD, HttpServer, served

pytestmark = pytest.mark.processes


# Promise: HTTP-9
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(broker, tmp_path, number):
    server = HttpServer(tmp_path, broker)
    try:
        server.start()
        with httpx.Client(trust_env=False) as client:
            assert client.get(server.url + "/healthz").status_code == 200
            assert server.end(number) == 0
    finally:
        server.close()
    assert "Traceback" not in server.log_text()


# Promise: HTTP-3
def test_a_first_link_is_printed_when_it_is_wanted_and_works_once(broker, tmp_path):
    with served(tmp_path, broker, wants_link=True) as site:
        place, once = site.server.link.split("/#/login?once=")
        assert place == site.server.url
        client = site.nobody()
        assert client.post("/session", json={"once": once}).json()["role"] == "admin"
        assert site.nobody().post("/session", json={"once": once}).status_code == 401
        assert once not in site.server.log_text()


# Promise: HTTP-3
def test_a_session_from_a_link_ends_and_cannot_renew_itself(broker, tmp_path):
    with served(tmp_path, broker) as site:
        once = site.link("operator", name="link-1a2b")
        client = site.nobody()
        session = client.post("/session", json={"once": once}).json()
        assert (session["name"], session["role"]) == ("link-1a2b", "operator")
        assert abs(session["expires"] - time.time() - 12 * 3_600) < 60
        again = site.nobody().post("/session", json={"once": client.cookies["scale0_session"]})
        assert (again.status_code, again.json()["message"]) == (401, LINK_INVALID)
        renewed = site.nobody().post("/session", json={"token": client.cookies["scale0_session"]}).json()
        assert renewed["expires"] <= session["expires"]
        assert client.get("/session").status_code == 200


# Promise: HTTP-9
def test_it_ends_when_whoever_started_it_is_gone(broker, tmp_path):
    server = HttpServer(tmp_path, broker)
    try:
        server.start()
        assert server.process.stdin is not None
        server.process.stdin.close()
        assert server.process.wait(PATIENCE_SECONDS) == 0
    finally:
        server.close()


# Promise: HTTP-9
def test_a_port_in_use_is_reported_in_a_line(broker, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(tmp_path, broker, port=taken.getsockname()[1])
        with pytest.raises(AssertionError):
            server.start()
        assert server.process.wait(PATIENCE_SECONDS) == 1
        server.close()
    assert "cannot listen" in server.log_text()
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b'{"nothing": 1}\n', b'{"port": "x"}\n'])
def test_settings_that_are_none_are_refused(line):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "scale0.http"],
        input=line,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")},
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


# Promise: HTTP-2
def test_with_tls_the_cookie_and_the_browser_stay_with_tls(broker, tmp_path):
    folder = tmp_path / "helen"
    run = [sys.executable, "-m", "scale0", "helen", "init", str(folder), "--name", "127.0.0.1", "--port", "0"]
    subprocess.run([*run, "--identity", "h"], check=True, capture_output=True, timeout=60)
    certificate = {"certificate": str(folder / "helen.pem"), "private_key": str(folder / "helen-key.pem")}
    with served(tmp_path, broker, **certificate) as site:
        assert site.server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        with httpx.Client(base_url=site.server.url, verify=context, trust_env=False) as client:
            response = client.post("/api/v1/session", json={"name": "vera", "password": PASSWORD})
            assert response.status_code == 200
            assert "secure" in response.headers["set-cookie"].lower()
            assert response.headers["strict-transport-security"].startswith("max-age=")
        with httpx.Client(trust_env=False) as plain, pytest.raises(httpx.TransportError):
            plain.get(site.server.url.replace("https", "http") + "/healthz")


def test_pages_are_served_by_their_exact_names(site):
    client = site.nobody()
    response = client.get(site.server.url + "/")
    assert response.headers["content-type"].startswith("text/html")
    assert client.get(site.server.url + "/", headers={"If-None-Match": response.headers["etag"]}).status_code == 304
    assert client.head(site.server.url + "/").content == b""
    assert client.get(site.server.url + "/assets/nothing.js").status_code == 404


def test_where_nothing_is_built_a_page_says_how(tmp_path):
    assert b"make setup" in read_pages(tmp_path / "nothing")[INDEX].body


def test_files_are_read_once_with_what_a_browser_must_know(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "app-1f2e.js").write_text("x" * 5_000)
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "link").symlink_to("/etc/passwd")
    found = read_pages(tmp_path)
    assert set(found) == {"index.html", "assets/app-1f2e.js"}
    script = found["assets/app-1f2e.js"]
    assert script.media_type.startswith("text/javascript")
    assert script.is_final
    assert script.packed is not None
    assert len(script.packed) < 200
    assert not found["index.html"].is_final
