"""A real server: Debian's Prometheus scrapes it with a token, pushes arrive, and the broker may go and come."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

import scale0
from tests.fakes.broker_process import broker_process
from tests.fakes.ports import free_port
from tests.fakes.waiting import until
from tests.processes.client.net import client_of, working
from tests.processes.http.receivers import Datagrams, collector
from tests.processes.http.site import Site, served
from tests.unit.http.metrics_page import filled_in, queries

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # a broker, a server and a Prometheus

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.1"
PROMETHEUS_YML = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: scale0
    authorization:
      credentials_file: {token}
    static_configs:
      - targets: ["{target}"]
"""


def hello() -> str:
    return "world"


def scraped(site: Site, accept: str = "", role: str = "viewer") -> httpx.Response:
    with site.by_token(role) as client:
        return client.get(f"{site.server.url}/metrics", headers={"Accept": accept} if accept else {})


def values(text: str, parse: Any = parse_plain) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


# Promise: EXP-1
def test_a_scrape_in_both_formats_tells_what_happened(site):
    with working(site.broker, hello), client_of(site.broker, timeout=20) as client:
        for _ in range(5):
            assert client.call("hello") == "world"

        def seen() -> bool:
            found = values(scraped(site).text)
            return found.get(("scale0_requests_answered_total", ("service", "hello")), 0) >= 5

        until(seen, "five requests in /metrics")
        plain, open_ = scraped(site), scraped(site, OPENMETRICS)
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert open_.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    found = values(open_.text, parse_openmetrics)
    assert found["scale0_broker_up",] == 1
    assert found["scale0_clients", ("role", "backend")] == 1
    assert found["scale0_request_duration_seconds_count", ("service", "hello")] >= 5
    assert found["scale0_service_slots", ("service", "hello")] >= 1


def test_who_may_read_is_who_has_a_token_unless_it_is_open(site, tmp_path):
    with site.nobody() as nobody:
        assert nobody.get(f"{site.server.url}/metrics").status_code == 401
    with served(tmp_path, site.broker, metrics_open=True) as opened, opened.nobody() as nobody:
        response = nobody.get(f"{opened.server.url}/metrics")
        assert response.status_code == 200
        assert values(response.text)["scale0_broker_up",] == 1


@contextlib.contextmanager
def prometheus(folder: Path, target: str, token: str) -> Iterator[str]:
    """Debian's Prometheus scraping a target; its own URL."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "prometheus.yml").write_text(PROMETHEUS_YML.format(token=folder / "token", target=target))
    port = free_port()
    with (folder / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            [
                "/usr/bin/prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def asked(url: str, query: str) -> list[dict[str, Any]]:
    place = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with contextlib.suppress(OSError), urllib.request.urlopen(place, timeout=5) as response:
        found: list[dict[str, Any]] = json.load(response)["data"]["result"]
        return found
    return []


# Promise: EXP-1
def test_debians_prometheus_scrapes_it_with_a_token_from_a_file_and_answers_queries(site, tmp_path):
    target = site.server.url.removeprefix("http://")
    with (
        working(site.broker, hello),
        client_of(site.broker, timeout=20) as client,
        prometheus(tmp_path, target, site.token("viewer", name="prom")) as url,
    ):

        def rate() -> float:
            client.call("hello")
            found = asked(url, 'rate(scale0_requests_answered_total{service="hello"}[30s])')
            return float(found[0]["value"][1]) if found else 0.0

        until(lambda: rate() > 0, f"a rate: {(tmp_path / 'prometheus.log').read_text()[-2_000:]}")
        assert asked(url, "up{job='scale0'}")[0]["value"][1] == "1"
        quantile = asked(url, "histogram_quantile(0.99, sum by (le) (scale0_request_duration_seconds_bucket))")
        assert 0 < float(quantile[0]["value"][1]) < 10
        info = asked(url, "scale0_broker_info")[0]["metric"]
        assert (info["broker"], info["version"]) == ("broker-1", scale0.__version__)
        for query in queries():
            place = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': filled_in(query)})}"
            assert httpx.get(place, trust_env=False).json()["status"] == "success", query


# Promise: EXP-1
def test_prometheus_with_a_wrong_token_gets_nothing(site, tmp_path):
    target = site.server.url.removeprefix("http://")
    with prometheus(tmp_path, target, "s0_" + "0" * 64) as url:
        until(lambda: asked(url, "up{job='scale0'}"), "that it was scraped")
        assert asked(url, "up{job='scale0'}")[0]["value"][1] == "0"
        assert asked(url, "scale0_broker_up") == []


# Promise: EXP-4, EXP-5
def test_a_server_pushes_to_whom_its_settings_name_and_counts_what_it_dropped(broker, tmp_path):
    away = free_port()
    udp = Datagrams()
    with collector() as receiver:
        exports = [
            {"kind": "otlp", "address": receiver.url, "interval": 1.0},
            {"kind": "statsd", "address": f"127.0.0.1:{udp.port}", "interval": 1.0, "prefix": "test.net"},
            {"kind": "graphite", "address": f"127.0.0.1:{away}", "interval": 1.0},
        ]
        with served(tmp_path, broker, exports=exports, metrics_open=True) as site, site.nobody() as nobody:
            lines: list[str] = []

            def pushed() -> bool:
                lines.extend(udp.lines())
                return bool(receiver.requests) and "test.net.broker-1.broker_up:1|g" in lines

            until(pushed, "a batch on each wire")

            def counted() -> bool:
                found = values(nobody.get(f"{site.server.url}/metrics").text)
                labels = (("address", f"127.0.0.1:{away}"), ("kind", "graphite"))
                return found.get(("scale0_export_dropped_total", *labels), 0) >= 1

            until(counted, "what was dropped")
            assert f"graphite at 127.0.0.1:{away} does not accept metrics" in site.server.log_text()
    udp.close()


def test_an_invalid_export_is_logged_and_the_server_serves(broker, tmp_path):
    exports = [{"kind": "otlp", "address": "127.0.0.1", "headers_file": "/nonexistent/headers"}]
    with served(tmp_path, broker, exports=exports, metrics_open=True) as site, site.nobody() as nobody:
        text = nobody.get(f"{site.server.url}/metrics").text
        assert 'scale0_export_up{address="127.0.0.1",kind="otlp"} 0.0' in text
        assert "headers_file /nonexistent/headers: No such file" in site.server.log_text()


# Promise: EXP-1
def test_a_broker_that_is_away_is_a_zero_and_no_error(tmp_path):
    with (
        broker_process(tmp_path / "broker") as broker,
        served(tmp_path, broker, metrics_open=True) as site,
        site.nobody() as nobody,
    ):

        def up() -> float:
            response = nobody.get(f"{site.server.url}/metrics")
            assert response.status_code == 200
            return values(response.text)["scale0_broker_up",]

        until(lambda: up() == 1, "the broker")
        broker.kill9()
        until(lambda: up() == 0, "that it is away")
        broker.restart()
        until(lambda: up() == 1, "the broker again")


# Promise: EXP-3
def test_a_scrape_takes_less_than_a_tenth_of_a_second(site):
    with site.by_token("viewer") as client:
        client.get(f"{site.server.url}/metrics")
        taken = []
        for _ in range(21):
            began = time.perf_counter()
            assert client.get(f"{site.server.url}/metrics").status_code == 200
            taken.append(time.perf_counter() - began)
        assert statistics.median(taken) < 0.1
