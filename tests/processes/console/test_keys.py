"""The console without a mouse: keys for every page, focus that is seen and stays in dialogs."""

# Promise: CON-14
from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.processes.console.chromium import PATIENCE_MS, Window

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FOCUSED = "document.activeElement?.outerHTML.slice(0, 120)"
OUTLINED = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
}"""
IN_DIALOG = """() => {
  const at = document.activeElement;
  return at === document.body || document.querySelector("dialog[open]").contains(at);
}"""
TABS = 30
"""More than any dialog has to stop at."""


def keys(seen: Window, *pressed: str) -> None:
    for key in pressed:
        seen.page.keyboard.press(key)


def test_every_page_has_a_key_and_the_list_of_keys_tells_it(opened):
    seen = opened("admin")
    seen.title("Overview")
    keys(seen, "?")
    expect(seen.dialog).to_contain_text("Keyboard shortcuts are on")
    rows = [each.inner_text().split("\n") for each in seen.dialog.locator(".keys-list > div").all()]
    keys(seen, "Escape")
    expect(seen.dialog).to_have_count(0)
    chords = {words: key.split()[1] for key, words in rows if key.startswith("g ")}
    assert len(chords) == 16
    for title, key in chords.items():
        keys(seen, "g", key)
        seen.title(title)
    seen.expected("status of 404")  # there is no warehouse


def test_a_filter_is_reached_and_left_by_key_and_rows_are_walked(opened):
    seen = opened("admin", "services")
    expect(seen.page.locator("tr[data-row]").first).to_be_visible(timeout=PATIENCE_MS)
    keys(seen, "/")
    filter_ = seen.page.get_by_role("searchbox")
    expect(filter_).to_be_focused()
    seen.page.keyboard.type("helen.check")
    expect(filter_).to_have_value("helen.check")
    keys(seen, "Escape")
    expect(filter_).not_to_be_focused()
    keys(seen, "j")
    link = seen.page.locator("tr[data-row] a").first
    expect(link).to_be_focused()
    assert seen.page.evaluate(OUTLINED), "who cannot see where they are is lost"
    keys(seen, "Enter")
    seen.see("Last five minutes")


def test_focus_is_seen_at_every_stop_and_stays_in_a_dialog(opened):
    seen = opened("admin", "silences")
    seen.see("Add a silence")
    for _ in range(TABS):
        keys(seen, "Tab")
        on_page = seen.page.evaluate("document.activeElement !== document.body")
        assert not on_page or seen.page.evaluate(OUTLINED), seen.page.evaluate(FOCUSED)
    seen.press("Add a silence")
    expect(seen.dialog).to_be_visible()
    for key in ("Tab", "Shift+Tab"):
        for _ in range(TABS):
            keys(seen, key)
            assert seen.page.evaluate(IN_DIALOG), seen.page.evaluate(FOCUSED)
    keys(seen, "Escape")
    expect(seen.dialog).to_have_count(0)
    expect(seen.page.get_by_role("button", name="Add a silence")).to_be_focused()
