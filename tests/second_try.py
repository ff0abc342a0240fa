"""Tests of real processes that failed beside others are tried once more, alone, when all the others have ended.

Lives here: which of them get a second try, the run of it, and what is said of it. Never here: a test.
Invariants: only what is marked `processes`, and only a few, so that a broken build fails as it always did; what fails
alone fails the run; what passes alone is listed with its first failure, never silently. See decision 0037.

`make test` asks for it (--second-try). `make soak`, `make sim` and a pytest by hand do not.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

MARK: Final = "processes"
MOST_TESTS: Final = 4
"""More failures than this are no accident of a busy machine."""
FAILED: Final = ("failed", "error")
NOT_RUN: Final = ("skipped", "xfailed")
PASSED_ALONE: Final = "passed only alone"


def may_be_tried_again(failed: Sequence[pytest.TestReport]) -> bool:
    """A few, and each of them of processes."""
    names = {report.nodeid for report in failed}
    return 0 < len(names) <= MOST_TESTS and all(MARK in report.keywords for report in failed)


def pass_alone(names: Iterable[str], config: pytest.Config) -> bool:
    """One after another, in a pytest without workers."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *sorted(set(names))]
    return subprocess.run(command, cwd=config.rootpath, check=False).returncode == 0


class SecondTry:
    """A plugin of the controller: at the end, before the summary."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter: TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or reporter is None:
            return
        if session.shouldfail or session.shouldstop:
            return  # -x: nobody knows about the rest
        if any(reporter.stats.get(outcome) for outcome in NOT_RUN):
            return  # it fails all the same
        failed = [report for outcome in FAILED for report in reporter.stats.get(outcome, ())]
        # A file that cannot be imported has a report too, of another class: it is not tried again.
        tests = [report for report in failed if isinstance(report, pytest.TestReport)]
        if len(tests) < len(failed) or not may_be_tried_again(tests):
            return
        reporter.ensure_newline()
        reporter.section("failed beside others: tried once more, alone", yellow=True)
        reporter.flush()
        if pass_alone((report.nodeid for report in tests), session.config):
            for outcome in FAILED:
                reporter.stats.pop(outcome, None)
            reporter.stats[PASSED_ALONE] = tests
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """What passed only alone has a fault of its own, or found one: it stands here until it is mended."""
        alone = terminalreporter.stats.get(PASSED_ALONE, ())
        if alone:
            terminalreporter.section(f"{PASSED_ALONE}: look for the cause", yellow=True)
        for report in alone:
            terminalreporter.line(f"{report.nodeid} ({report.when})")
            terminalreporter.line(report.longreprtext)
