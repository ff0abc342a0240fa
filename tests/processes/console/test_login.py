"""Coming in, going out, and what each role is shown: the console as somebody meets it first."""

# Promise: CON-7
from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NOT_LOGGED_IN = r"status of 401"
"""A browser logs this itself when the console asks who is there and nobody is."""


def test_the_link_that_up_printed_opens_the_console_once(net, opened):
    first = opened("", net.link.partition("/#/")[2])
    first.title("Overview")
    expect(first.page.locator(".who")).to_contain_text("admin")
    assert "once=" not in first.page.evaluate("location.href"), "the secret stays in no address"
    first.page.go_back()
    assert "once=" not in first.page.evaluate("location.href"), "nor in the history"
    first.expected(NOT_LOGGED_IN)

    second = opened("", net.link.partition("/#/")[2])
    expect(second.page.get_by_role("alert")).to_be_visible()
    expect(second.page.get_by_role("button", name="Log in")).to_be_visible()
    second.see("scale0 access link")
    second.expected(NOT_LOGGED_IN)


def test_who_has_a_token_comes_in_and_goes_out_again(net, opened):
    seen = opened("")
    token = net.token("operator", "otto")
    seen.page.get_by_label("Token").first.check()
    seen.page.locator("input[name=token]").fill(token)
    seen.press("Log in")
    seen.title("Overview")
    expect(seen.page.locator(".who")).to_have_text("otto operator")
    cookie = next(each for each in seen.context.cookies() if each["name"] == "scale0_session")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    seen.press("Log out")
    expect(seen.page.get_by_role("button", name="Log in")).to_be_visible()
    seen.page.reload()
    expect(seen.page.get_by_role("button", name="Log in")).to_be_visible()
    seen.expected(NOT_LOGGED_IN)


def test_a_wrong_password_is_reported_and_the_name_stays(opened):
    seen = opened("")
    seen.page.get_by_label("Name", exact=True).fill("ada")
    seen.page.get_by_label("Password", exact=True).fill("open barley")
    seen.press("Log in")
    alert = seen.page.get_by_role("alert")
    expect(alert).to_contain_text("the name or the password is wrong")
    expect(seen.page.get_by_label("Name", exact=True)).to_have_value("ada")
    seen.expected(NOT_LOGGED_IN)


def test_a_login_that_ends_brings_back_to_the_same_page(net, opened):
    seen = opened("viewer", "tasks")
    seen.title("Tasks")
    while mine := [each for each in net.ask("GET", "/tokens")["items"] if each["name"] == "the-viewer"]:
        net.ask("DELETE", f"/tokens/{mine[0]['id']}")  # the sessions of a token end with it
    seen.see("Your session has ended")
    seen.page.get_by_label("Token").first.check()
    seen.page.locator("input[name=token]").fill(net.token("viewer"))
    seen.press("Log in")
    seen.title("Tasks")
    seen.expected(NOT_LOGGED_IN)
