"""Ten thousand clients: the list scrolls, filters and sorts, and a few dozen rows are in the page."""

from __future__ import annotations

import sys
import time

import pytest
from playwright.sync_api import expect

from tests.fakes.processes import background
from tests.fakes.shell import REPOSITORY
from tests.processes.console.chromium import PATIENCE_MS
from tests.processes.console.network import network

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CLIENTS = 10_000
MAX_ROWS = 120
FRAME_MS = 250
"""A step of scrolling on a machine that does a lot besides; without a virtual list it takes seconds."""


@pytest.fixture(scope="module")
def unencrypted(tmp_path_factory):
    with network(tmp_path_factory.mktemp("unencrypted"), "--insecure") as made:
        yield made


@pytest.fixture
def net(unencrypted):
    """Ten thousand handshakes with keys are not what is tested here."""
    return unencrypted


@pytest.fixture
def herd(net):
    """Idle frontends, all in one process."""
    words = [sys.executable, "-m", "tests.processes.console.herd", f"tcp://{net.frontend}", str(CLIENTS)]
    with background(words, REPOSITORY, net.shell.environment) as running:
        running.wait_for("ready")
        yield CLIENTS


# Promise: CON-5
def test_a_list_of_ten_thousand_is_drawn_where_one_looks(herd, opened):
    seen = opened("viewer", "clients?role=frontend")
    rows = seen.page.locator("tr[data-row]")
    count = seen.page.locator(".bar [role=status]")
    expect(count).to_contain_text("10,00", timeout=PATIENCE_MS)
    assert 10 < rows.count() < MAX_ROWS
    box = seen.page.locator(".table-box.long")
    assert int(seen.page.locator("table").get_attribute("aria-rowcount") or 0) > CLIENTS

    began = time.monotonic()
    steps = 20
    for step in range(1, steps + 1):
        box.evaluate(
            "(box, share) => new Promise((done) => {"
            " box.scrollTop = share * box.scrollHeight; requestAnimationFrame(() => requestAnimationFrame(done)) })",
            step / steps,
        )
        assert rows.count() < MAX_ROWS
    took_ms = (time.monotonic() - began) * 1000 / steps
    assert took_ms < FRAME_MS, f"{took_ms:.0f} ms for a step"
    expect(rows.last).to_contain_text("idle-9")

    seen.page.get_by_role("searchbox").fill("idle-9876")
    expect(rows).to_have_count(1, timeout=PATIENCE_MS)
    expect(rows).to_contain_text("idle-9876")
