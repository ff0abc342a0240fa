"""The past, from the pipeline's tables: availability with what nobody observed, trends; and what is said without them."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect

from tests.console.chromium import PATIENCE_MS
from tests.pipeline import reports_made

pytestmark = pytest.mark.processes

NO_TABLES = "status of 404"


@pytest.fixture
def warehouse(net, tmp_path_factory):
    """Ten days of a small network in which a few things went wrong."""
    made = reports_made.made(tmp_path_factory.mktemp("warehouse"))
    place = net.data_dir / "warehouse"
    shutil.copytree(made, place)
    yield place
    shutil.rmtree(place)


# Promise: CON-6
def test_without_tables_it_is_said_what_to_type(opened):
    seen = opened("viewer", "availability")
    for place in ("availability", "trends"):
        seen.go(place)
        seen.see("there are no tables yet")
        seen.see("scale0 pipeline run")
    seen.expected(NO_TABLES)


# Promise: CON-6
def test_availability_tells_up_from_down_and_both_from_what_nobody_observed(warehouse, opened):
    seen = opened("viewer", "availability")
    row = seen.row("node-1")
    print(row.inner_text())
    print(seen.page.locator("main").inner_text()[:3000])
    share = row.get_by_role("img")
    expect(share).to_have_attribute("aria-label", "unobserved 12 %", timeout=PATIENCE_MS)
