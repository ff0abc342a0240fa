"""Configuration and silences, changed in the browser while others change them too; the command line sees the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.fakes.waiting import until
from tests.processes.console.chromium import PATIENCE_MS, Window

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def text_of(seen: Window) -> Any:
    return json.loads(seen.page.locator("textarea.code").input_value())


def edited(seen: Window, **changes: object) -> None:
    """Change keys of the text, as somebody who types."""
    seen.page.locator("textarea.code").fill(json.dumps({**text_of(seen), **changes}, indent=2))


def saved(seen: Window) -> None:
    seen.see("The document is valid.")
    seen.press("Review and save…")
    seen.press("Save as version", seen.dialog)


# Promise: CON-4
def test_who_was_slower_is_shown_both_changes_and_loses_nothing(net, opened):
    net.wait_for_helen()  # she changes the configuration herself, once
    before = net.cli("config", "show")["config"]
    seen = opened("admin", "config")
    until(lambda: text_of(seen) == before, "the editor has the current version")
    edited(seen, heartbeat_liveness=5)
    seen.see("The document is valid.")

    done = net.shell.run("config", "set", "default_heartbeat_interval=1.5")
    assert done.returncode == 0, done.stderr
    saved(seen)
    number = before["version"]
    expect(seen.dialog).to_contain_text(f"Version {number + 1} was saved before yours", timeout=PATIENCE_MS)
    expect(seen.dialog).to_contain_text("default_heartbeat_interval")
    expect(seen.dialog).to_contain_text("heartbeat_liveness")
    expect(seen.dialog).to_contain_text("The changes do not conflict.")
    assert net.ask("GET", "/config")["config"]["heartbeat_liveness"] == 3, "nothing of it was saved"

    seen.press("Reapply mine", seen.dialog)
    text = text_of(seen)
    assert (text["heartbeat_liveness"], text["default_heartbeat_interval"]) == (5, 1.5)
    saved(seen)
    seen.see(f"Version {number + 2} is current.")
    now = net.ask("GET", "/config")["config"]
    assert (now["version"], now["heartbeat_liveness"], now["default_heartbeat_interval"]) == (number + 2, 5, 1.5)
    seen.expected("status of 409")

    seen.go("config/history")
    seen.press(f"Roll back to version {number}", seen.page.locator("main"))
    expect(seen.dialog).to_contain_text("heartbeat_liveness", timeout=PATIENCE_MS)
    seen.press("Roll back", seen.dialog)
    seen.see(f"it has the content of version {number}")
    now = net.ask("GET", "/config")["config"]
    assert (now["version"], now["heartbeat_liveness"], now["default_heartbeat_interval"]) == (number + 3, 3, 1.0)


# Promise: CON-4
def test_an_invalid_document_is_reported_while_one_types(opened):
    seen = opened("admin", "config")
    field = seen.page.locator("textarea.code")
    expect(field).not_to_be_empty(timeout=PATIENCE_MS)
    edited(seen, heartbeat_liveness="often")
    verdict = seen.page.locator("#verdict")
    expect(verdict).to_contain_text("The document is invalid", timeout=PATIENCE_MS)
    expect(verdict).to_contain_text("heartbeat_liveness")
    expect(seen.page.get_by_role("button", name="Review and save…")).to_be_disabled()
    field.fill("{ not JSON")
    expect(verdict).to_contain_text("The document is invalid")
    seen.press("Discard changes")
    seen.expected("status of (400|422)")


# Promise: CON-10
def test_a_check_is_silenced_where_it_is_seen_and_the_command_line_knows(net, opened):
    net.wait_for_helen()
    done = net.shell.run("check", "add", "full", "--check", "disk", "--arg", "crit=0", "--interval", "1")
    assert done.returncode == 0, done.stderr
    seen = opened("operator", "checks")
    row = seen.row("full", "critical")
    expect(row).to_be_visible(timeout=PATIENCE_MS)
    seen.press("Silence", row)
    expect(seen.dialog.get_by_label("Checks")).to_have_value("full")
    seen.dialog.get_by_label("Reason").fill("moving house")
    seen.press("Add", seen.dialog)
    expect(row.locator(".tag", has_text="silenced")).to_be_visible(timeout=PATIENCE_MS)

    (silence,) = net.cli("silence", "list")
    assert (silence["checks"], silence["reason"], silence["author"]) == (["full"], "moving house", "the-operator")
    seen.go("silences")
    listed = seen.row("moving house")
    expect(listed).to_contain_text("the-operator")
    seen.press("End", listed)
    seen.press("End", seen.dialog)
    seen.see("There are no silences.")
    assert net.cli("silence", "list") == []
    seen.go("checks")
    expect(row).to_be_visible(timeout=PATIENCE_MS)
    expect(row.locator(".tag", has_text="silenced")).to_have_count(0, timeout=PATIENCE_MS)
    net.shell.run("check", "remove", "full")
