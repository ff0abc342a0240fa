"""One browser and one network for this folder; a window for each test, logged in as who it asks for.

Both are ended with the last test of the folder, not of the whole run: they must not disturb what others measure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.processes.console.chromium import Scheme, Window, launched, window
from tests.processes.console.network import Network, network

HERE = Path(__file__).parent
FOLDER = contextlib.ExitStack()
"""What lasts as long as the tests of this folder."""
MADE: dict[str, object] = {}

Opened = Callable[..., Window]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or HERE not in nextitem.path.parents:
        MADE.clear()
        FOLDER.close()


@pytest.fixture
def browser() -> Browser:
    if "browser" not in MADE:
        running = launched(FOLDER.enter_context(sync_playwright()))
        FOLDER.callback(running.close)
        MADE["browser"] = running
    made = MADE["browser"]
    assert isinstance(made, Browser)
    return made


@pytest.fixture(scope="module")
def folder_network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    if "net" not in MADE:
        MADE["net"] = FOLDER.enter_context(network(tmp_path_factory.mktemp("network")))
    made = MADE["net"]
    assert isinstance(made, Network)
    return made


@pytest.fixture
def net(folder_network: Network) -> Network:
    return folder_network


@pytest.fixture
def opened(browser: Browser, net: Network) -> Iterator[Opened]:
    """Opens a window for somebody of a role; "" is nobody."""
    with contextlib.ExitStack() as stack:

        def open_window(
            role: str = "admin", place: str = "overview", scheme: Scheme = "light", width: int = 1280
        ) -> Window:
            made = stack.enter_context(window(browser, net.url, scheme, width))
            if role:
                made.enter(net.token(role))
            made.go(place)
            return made

        yield open_window
