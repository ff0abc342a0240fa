"""Requests that do not wait for responses, and bytes around a body: both are bounded for each connection."""

# Promise: HTTP-5
from __future__ import annotations

import socket

import pytest

from scale0.http.listener import MAX_HEAD_BYTES, MAX_PIPELINED
from tests.processes.http.site import received

pytestmark = pytest.mark.processes

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
MIB = 1024 * 1024


def is_served(site):
    return site.nobody().get(site.server.url + "/healthz").status_code == 200


def test_requests_that_wait_for_earlier_responses_are_limited(site):
    response = site.raw(GET * 60)
    assert response.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
    assert response.count(b"HTTP/1.1 429 ") == response.count(b"HTTP/1.1 ") - MAX_PIPELINED - 1 == 1
    assert b"wait for a response before the next request" in response
    assert is_served(site)


def test_a_few_requests_in_one_write_are_answered(site):
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert site.raw(GET * MAX_PIPELINED + last).count(b"200 OK") == MAX_PIPELINED + 1


def test_a_body_of_the_last_request_that_waited_is_read(site):
    with socket.create_connection(site.server.address, timeout=5) as sock:
        sock.sendall(GET + POST + b"Connection: close\r\nContent-Length: 20000\r\n\r\n")
        sock.sendall(b" " * 20_000)
        response = received(sock)
    assert response.count(b"HTTP/1.1 200 ") == response.count(b"HTTP/1.1 413 ") == 1


@pytest.mark.parametrize("trailer", [b"a: b\r\n", b"a:b\r\n" * 1_000], ids=["one", "many"])
def test_trailers_are_refused(site, trailer):
    response = site.raw(CHUNKED + b"0\r\n" + trailer + b"\r\n")
    assert response.count(b"HTTP/1.1 ") == response.count(b"HTTP/1.1 431 ") == 1
    assert is_served(site)


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"0\r\nx", b"1;x=", b"1;x"], ids=range(4))
def test_what_surrounds_a_body_is_limited(site, start):
    with socket.create_connection(site.server.address, timeout=5) as sock:
        sock.sendall(CHUNKED + start)
        try:
            for _ in range(MIB // 4_096):
                sock.sendall(b"y" * 4_096)
        except ConnectionError:
            return
        assert received(sock).count(b"HTTP/1.1 431 ") == 1
    assert is_served(site)


def test_a_body_in_small_chunks_is_accepted(site):
    chunks = b"1\r\n \r\n" * (MAX_HEAD_BYTES // 4)
    response = site.raw(CHUNKED + chunks + b"0\r\n\r\n")
    assert response.split()[1] == b"400"


def test_a_refusal_is_not_written_in_place_of_an_earlier_response(site):
    response = site.raw(GET + b"GET / HTTP/1.1\r\nX: " + b"y" * (MAX_HEAD_BYTES + 10) + b"\r\n\r\n")
    assert response == b"" or response.startswith(b"HTTP/1.1 200 OK")
