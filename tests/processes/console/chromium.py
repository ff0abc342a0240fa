"""Debian's Chromium for the tests of the console.

A test fails if a page logs an error, throws, violates its content security policy or loads anything from another
origin, unless the test expects it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Playwright, expect

from scale0.http.console_pages import FOLDER, INDEX

CHROMIUM: Final = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS: Final = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
PATIENCE_MS: Final = 20_000
"""How long anything may take on a busy machine."""
REPOSITORY: Final = Path(__file__).resolve().parents[3]
AXE: Final = REPOSITORY / "console" / "node_modules" / "axe-core" / "axe.min.js"
BROKEN_POLICY: Final = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`content policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""

Scheme = Literal["light", "dark"]


def launched(playwright: Playwright) -> Browser:
    """A browser; the console must be built, and Chromium installed."""
    if not (FOLDER / INDEX).exists():
        raise AssertionError(f"the console's pages are not built in {FOLDER}: run `make setup` (or scripts/console)")
    if not Path(CHROMIUM).exists():
        raise AssertionError(f"there is no {CHROMIUM}: `make setup` installs Debian's package chromium")
    return playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


class Window:
    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"thrown: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"loads from elsewhere: {request.url}")

    def expected(self, pattern: str) -> None:
        """These complaints are part of the story: a browser logs each answer of 4xx as an error of its own."""
        self.complaints = [each for each in self.complaints if not re.search(pattern, each)]

    def enter(self, token: str) -> None:
        response = self.context.request.post(
            f"{self.url}/api/v1/session", data={"token": token}, headers={"Origin": self.url}
        )
        assert response.ok, response.text()

    def go(self, place: str) -> None:
        """Open a place of the console, as from a bookmark; a page that is open only changes its place."""
        if self.page.url.startswith(self.url):
            self.page.evaluate("(place) => { location.hash = place }", f"#/{place}")
        else:
            self.page.goto(f"{self.url}/#/{place}")
        self.page.wait_for_selector("main")

    def title(self, words: str) -> None:
        expect(self.page.get_by_role("heading", level=1, name=words)).to_be_visible(timeout=PATIENCE_MS)

    def row(self, *words: str) -> Locator:
        """The row of a table in which all these words stand."""
        found = self.page.locator("[data-row]")
        for word in words:
            found = found.filter(has_text=word)
        return found

    def see(self, text: str | re.Pattern[str]) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=PATIENCE_MS)

    def press(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        (within or self.page).get_by_role("button", name=name).first.click()

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def stays(self) -> StaysHere:
        """Whether the page was reloaded since."""
        return StaysHere(self.page)

    def axe(self) -> list[str]:
        """What axe finds here that is serious or worse."""
        if not AXE.exists():
            raise AssertionError(f"there is no {AXE}: run `make setup` (or scripts/console)")
        # By evaluation: the page's policy lets no foreign script in, and that is as it should be.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def too_wide(self) -> int:
        """By how many pixels the page, or what scrolls in it, is wider than its place."""
        wide: int = self.page.evaluate(
            "Math.max(...[document.documentElement, document.querySelector('main')]"
            ".map((each) => each.scrollWidth - each.clientWidth))"
        )
        return max(0, wide)


class StaysHere:
    """A mark on a page that goes when the page is reloaded."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.evaluate("window.markOfTheTest = true")

    def still(self) -> bool:
        return bool(self._page.evaluate("window.markOfTheTest === true"))


@contextlib.contextmanager
def window(
    browser: Browser, url: str, scheme: Scheme = "light", width: int = 1280, height: int = 860
) -> Iterator[Window]:
    """A window with cookies of its own; at its end nothing may have been complained about."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    try:
        context.add_init_script(BROKEN_POLICY)
        made = Window(context, url)
        yield made
        assert made.complaints == [], "\n".join(made.complaints)
    finally:
        context.close()
