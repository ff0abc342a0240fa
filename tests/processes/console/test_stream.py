"""The event stream, and every page that is live: the server is killed under them, and nothing is lost or doubled."""

# Promise: CON-6, CON-12
from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.fakes.waiting import until
from tests.processes.console.chromium import PATIENCE_MS, Window

pytestmark = [pytest.mark.processes, pytest.mark.slow]

AWAY = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|Failed to load"
"""A browser logs each request that found missing."""


def of_task(seen: Window, task: str) -> Locator:
    return seen.page.locator(f'[data-row]:has([title="{task}"])')


def test_a_stream_goes_on_where_it_was_cut_and_says_stale_meanwhile(net, opened):
    live = opened("viewer", "events?kind=task.submitted&service=missing.*")
    silent = opened("viewer", "events?kind=task.submitted&service=missing.later")
    overview = opened("viewer", "overview")
    windows = (live, silent, overview)
    for each in (live, silent):
        each.see("streaming")
    before = [net.submit("missing.now", "x") for _ in range(2)]
    for task in before:
        expect(of_task(live, task)).to_have_count(1, timeout=PATIENCE_MS)

    old = net.server_process()
    old.suspend()  # first it only says nothing: what is asked of it now is lost with it
    old.kill()
    missed = [net.submit("missing.later", "x") for _ in range(2)]
    for each in (live, silent):
        each.see(re.compile("stale since"))
    expect(overview.page.locator(".live-box")).to_contain_text("stale since", timeout=PATIENCE_MS)

    until(lambda: (new := net.server_process_or_none()) and new.pid != old.pid, "the broker started it again")
    for each in (live, silent):
        each.see("streaming")
    after = net.submit("missing.later", "x")
    for task in [*before, *missed, after]:
        expect(of_task(live, task)).to_have_count(1, timeout=PATIENCE_MS)
    for task in [*missed, after]:
        expect(of_task(silent, task)).to_have_count(1, timeout=PATIENCE_MS)
    expect(overview.page.locator(".live-box")).to_contain_text("live", timeout=PATIENCE_MS)
    expect(live.page.locator("tr[data-row]")).to_have_count(5)
    expect(silent.page.locator("tr[data-row]")).to_have_count(3)
    for each in windows:
        each.expected(AWAY)


def test_a_paused_stream_holds_what_comes_and_shows_it_after(net, opened):
    seen = opened("viewer", "events?kind=task.submitted&service=missing.paused")
    seen.see("streaming")
    seen.press("Pause")
    task = net.submit("missing.paused", "x")
    seen.see("paused, 1 held")
    expect(of_task(seen, task)).to_have_count(0)
    seen.press("Resume")
    expect(of_task(seen, task)).to_have_count(1, timeout=PATIENCE_MS)
    of_task(seen, task).get_by_role("button").first.click()
    expect(seen.dialog).to_contain_text(task)
