"""What holds for every test: fixed examples, no silent skips, coroutines, and the order of files."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

# Tests start hundreds of processes. Where a machine forbids to write bytecode, each of them compiles the package anew,
# which doubles the time that a broker takes to import it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Brokers link their keys in the user's folder; those of tests are not the business of who runs them.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="scale0-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# A shell that starts us in the background has us ignore Ctrl-C, and processes that tests start would, too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `fixed` tries the same examples every time, so that a red build is red again on the next machine.
# `search` looks for new ones: HYPOTHESIS_PROFILE=search make test
# `floor` tries a fifth of them: `make check` is for while one types.
_SLOW_IS_FINE = (HealthCheck.too_slow,)  # the machine may be busy; pytest-timeout ends what hangs
settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW_IS_FINE, print_blob=True
)
settings.register_profile("floor", settings.get_profile("fixed"), max_examples=20)
settings.register_profile("search", max_examples=1_000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allow-skips", action="store_true", help="let a run with skipped tests pass")
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/durations.json (see tests/scheduling.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == FLOOR and "HYPOTHESIS_PROFILE" not in os.environ:
        settings.load_profile("floor")
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        from tests.scheduling import Durations

        config.pluginmanager.register(Durations())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


FLOOR = "not slow and not processes and not extended"
"""What `make check` asks for."""
WHOLE_FILE = re.compile(r"^pytestmark = .*\bpytest\.mark\.(?:slow|processes)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The floor does not import what it would leave out: that takes longer than many of its tests."""
    if config.option.markexpr != FLOOR or not collection_path.name.startswith("test_"):
        return None
    return WHOLE_FILE.search(collection_path.read_text(encoding="utf-8")) is not None or None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """The suite's own order; whoever asks for another --dist than that of pyproject.toml gets it."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import SuiteScheduling

    return SuiteScheduling(config, log)


def _not_run(config: pytest.Config) -> Iterator[str]:
    """The name of each test (or file) that was skipped or allowed to fail."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of xdist: the controller hears of its skips
        return
    for outcome in ("skipped", "xfailed"):
        for report in reporter.stats.get(outcome, ()):
            yield f"{report.nodeid} ({outcome})"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that did not run proves nothing: the run fails."""
    if not session.config.getoption("--allow-skips") and any(_not_run(session.config)):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    names = sorted(set(_not_run(config)))
    if names and not config.getoption("--allow-skips"):
        terminalreporter.section("skipped tests fail the run (--allow-skips lets them be)", red=True)
        for name in names:
            terminalreporter.line(name)
