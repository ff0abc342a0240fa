"""Every page, with something on it, as axe, a phone and a viewer see it.

Axe finds nothing serious in light and dark; nothing is wider than its window; no script, style or request is where the
content policy does not want it (`chromium.py` fails a test whose page complains); nobody is offered what is refused.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.processes.console.chromium import PATIENCE_MS, Window
from tests.processes.console.sample_network import sample_network

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CHANGES = re.compile(
    "^(Retry|Cancel|Run now|Silence|Add a silence|End|Schedule a downtime|Enable|Disable|Drain|Reload|Forgive|"
    "Roll back|Issue|Revoke|Review and save)"
)
"""Buttons that change something, by how their names begin."""


@pytest.fixture(scope="module")
def stage(folder_network, tmp_path_factory):
    with sample_network(folder_network, tmp_path_factory.mktemp("sample")) as made:
        yield made


def settled(seen: Window, place: str) -> None:
    """A page with all that it shows first."""
    seen.go(place)
    expect(seen.page.locator(".loading")).to_have_count(0, timeout=PATIENCE_MS)
    expect(seen.page.locator("main h1")).to_be_visible(timeout=PATIENCE_MS)


# Promise: CON-15
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 390)], ids=["a desk by day", "a phone by night"]
)
def test_axe_finds_nothing_serious_on_any_page_and_none_is_wider_than_its_window(stage, opened, scheme, width):
    seen = opened("admin", scheme=scheme, width=width)
    found = {}
    for name, place in stage.places.items():
        settled(seen, place)
        if wrong := seen.axe():
            found[name] = wrong
        if by := seen.too_wide():
            found[f"{name} is too wide"] = [str(by)]
    assert found == {}


# Promise: CON-15
def test_axe_finds_nothing_serious_where_one_logs_in(opened):
    seen = opened("", "login")
    expect(seen.page.get_by_role("button", name="Log in")).to_be_visible()
    assert seen.axe() == []
    seen.expected("status of 401")


# Promise: CON-15
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_dialogs(stage, opened, scheme):
    seen = opened("admin", "checks", scheme=scheme)
    seen.press("Silence", seen.row("full"))
    expect(seen.dialog).to_be_visible()
    assert seen.axe() == []
    seen.page.keyboard.press("Escape")
    seen.press("Keys")
    expect(seen.dialog).to_contain_text("Keyboard shortcuts are on")
    assert seen.axe() == []


def buttons(seen: Window) -> Locator:
    """All that changes something; the head of a column may have the same word."""
    return seen.page.locator("main button:not(.head)").and_(seen.page.get_by_role("button", name=CHANGES))


# Promise: CON-13
def test_a_viewer_is_offered_nothing_that_would_be_refused(stage, opened):
    sent: list[str] = []
    seen = opened("viewer")
    seen.page.on("request", lambda request: sent.append(request.method) if request.method != "GET" else None)
    offered = 0
    for name, place in stage.places.items():
        settled(seen, place)
        for button in buttons(seen).all():
            offered += 1
            assert button.get_attribute("aria-disabled") == "true" or button.is_disabled(), f"{name}: {button}"
            why = button.get_attribute("title") or seen.page.locator("main").inner_text()
            assert "needs the role" in why, f"{name}: {button.inner_text()} does not say why not"
            button.click(force=True)
            expect(seen.dialog).to_have_count(0)
    assert offered > 10
    assert sent == [], "nothing was even tried"
    expect(seen.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Access")).to_have_count(0)


# Promise: CON-13
def test_an_operator_may_do_what_an_operator_may(stage, opened):
    seen = opened("operator", f"tasks/{stage.failed}")
    button = seen.page.locator("main").get_by_role("button", name="Retry")
    expect(button).to_be_visible(timeout=PATIENCE_MS)
    assert button.get_attribute("aria-disabled") is None
    settled(seen, "config/history")
    for each in seen.page.locator("main").get_by_role("button", name="Roll back").all():
        assert each.get_attribute("aria-disabled") == "true"
