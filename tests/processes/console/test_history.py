"""The past, from the pipeline's tables: availability with unobserved time, trends; what the page shows without them."""

# Promise: CON-11
from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect

from tests.pipeline import reports_made
from tests.processes.console.chromium import PATIENCE_MS

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NO_TABLES = "status of 404"


@pytest.fixture
def warehouse(net, tmp_path_factory):
    """Ten days of a small network in which a few things went wrong."""
    made = reports_made.made(tmp_path_factory.mktemp("warehouse"))
    place = net.data_dir / "warehouse"
    shutil.copytree(made, place)
    yield place
    shutil.rmtree(place)


def test_without_tables_the_page_shows_what_to_type(opened):
    seen = opened("viewer", "availability")
    for place in ("availability", "trends"):
        seen.go(place)
        seen.see("the warehouse has no tables yet")
        seen.see("scale0 pipeline run")
    seen.expected(NO_TABLES)


def test_availability_tells_up_from_down_and_both_from_what_nobody_observed(warehouse, opened):
    seen = opened("viewer", "availability")
    row = seen.row("node-1", "client")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", "unobserved 12.1 %, up 87.9 %", timeout=PATIENCE_MS)
    expect(row).to_contain_text("87.875 %")
    expect(row).to_contain_text("1 d 6 h (12.1 %)")
    assert row.locator("rect.part-unobserved").bounding_box() != row.locator("rect.part-up").bounding_box()
    expect(seen.row("thumbs.make", "service")).to_contain_text("98.864 %")
    seen.see("availability lies between at least and at most")
    evil = seen.row("<script>")
    expect(evil).to_have_count(1)  # as text

    seen.page.get_by_role("searchbox").fill("node-1")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator("tr[data-row]")).to_have_count(1, timeout=PATIENCE_MS)
    assert "subject=node-1" in seen.page.evaluate("location.hash"), "it can be sent to somebody"


def test_trends_and_forecasts_are_drawn_and_summarised(warehouse, opened):
    seen = opened("viewer", "trends")
    for name in ("Capacity and forecasts", "Requests", "Tasks", "Checks", "Incidents", "Noise"):
        seen.page.get_by_role("navigation", name="Reports").get_by_role("link", name=name, exact=True).click()
        expect(seen.page.locator(".report .summary")).to_be_visible(timeout=PATIENCE_MS)
        expect(seen.page.locator(".report")).to_contain_text("Notes on the data")
