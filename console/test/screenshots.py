"""Screenshots of every page of the console, in light, dark and narrow, with the findings of axe and the page's errors.

Usage: python console/test/screenshots.py [URL] [FOLDER] [PAGE…]. Without a URL it starts the fake API; with one,
SCALE0_TOKEN is the token to log in with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright

HERE: Final = Path(__file__).parent
AXE: Final = HERE.parent / "node_modules" / "axe-core" / "axe.min.js"
PAGES: Final = {
    "overview": "overview",
    "topology": "topology",
    "services": "services",
    "service": "services/thumbs.make",
    "queues": "queues",
    "tasks": "tasks",
    "task": "",
    "clients": "clients",
    "error-clients": "clients/errors",
    "agents": "agents",
    "checks": "checks",
    "check": "checks/db-1/disk",
    "incidents": "incidents?show=all",
    "silences": "silences",
    "downtimes": "silences/downtimes",
    "availability": "availability",
    "capacity": "trends/capacity",
    "requests": "trends/requests",
    "config": "config",
    "config-history": "config/history",
    "config-compare": "config/compare",
    "events": "events",
    "audit": "audit",
    "access": "access",
}
WAYS: Final = {"light": (1280, 860, "light"), "dark": (1280, 860, "dark"), "narrow": (390, 844, "light")}
SETTLE_MS: Final = 900
"""A picture of a page that moves is taken a moment after its data came; nothing is judged by it."""


@contextmanager
def fake_api() -> Iterator[str]:
    """The fake API on a free port."""
    child = subprocess.Popen(["node", str(HERE / "fake-api.mjs"), "0"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.wait(10)


def shoot(browser: Browser, url: str, folder: Path, wanted: set[str]) -> int:
    """All pictures; how many things are wrong."""
    wrong = 0
    for way, (width, height, scheme) in WAYS.items():
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda said: print(f"console: {said.text}") if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: print(f"error: {error}"))
        page.goto(f"{url}#/login")
        page.wait_for_selector("form")
        if not wanted or "login" in wanted:
            page.screenshot(path=folder / f"login-{way}.png")
            wrong += judge(page, f"login {way}")
        log_in(page)
        for name, place in PAGES.items():
            if wanted and name not in wanted:
                continue
            if name == "task":
                page.evaluate("location.hash = '#/tasks?status=failed'")
                page.locator("td:first-child a").first.click()
            else:
                page.evaluate(f"location.hash = '#/{place}'")
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=folder / f"{name}-{way}.png")
            wrong += judge(page, f"{name} {way}")
            wrong += overflow(page, f"{name} {way}")
        context.close()
    return wrong


def log_in(page: Any) -> None:
    """By a token from outside, else by the fake's link that always works."""
    token = os.environ.get("SCALE0_TOKEN")
    if token:
        page.get_by_label("Token", exact=True).first.check()
        page.locator("input[name=token]").fill(token)
        page.get_by_role("button", name="Log in").click()
    else:
        page.evaluate("location.hash = '#/login?once=demo'")
    page.wait_for_selector(".verdict")


def judge(page: Any, name: str) -> int:
    """What axe finds that is serious or worse. It runs in the page, which forbids foreign scripts: so by evaluation."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    for each in bad:
        print(f"axe {name}: {each['id']} ({each['impact']}): {each['help']}; {len(each['nodes'])} times")
        for node in each["nodes"][:2]:
            print(f"    {node['html'][:160]}\n    {node.get('failureSummary', '')[:200]}")
    for each in found:
        if each not in bad:
            print(f"axe {name}: (minor) {each['id']}: {each['nodes'][0]['html'][:100]}")
    return len(bad)


def overflow(page: Any, name: str) -> int:
    """1 if the page is wider than the window."""
    wide = page.evaluate(
        "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth) - innerWidth"
    )
    if wide > 0:
        print(f"too wide {name}: by {wide} px")
    return int(wide > 0)


def main(arguments: list[str]) -> int:
    """Walk."""
    given = arguments[0] if arguments and arguments[0].startswith("http") else None
    rest = arguments[1:] if given else arguments
    folder = Path(rest[0]) if rest else HERE / "shots"
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        if given:
            return shoot(browser, given, folder, set(rest[1:]))
        with fake_api() as url:
            return shoot(browser, url, folder, set(rest[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
