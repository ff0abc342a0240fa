"""Plugins of Nagios become states, an incident and a webhook's call, as the README shows."""

# Promise: CLI-3
from __future__ import annotations

import pytest

from tests.cli.shell import EXAMPLES
from tests.examples.readme import commands, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(tmp_path):
    with terminal(EXAMPLES, tmp_path) as user:
        user.play(*commands((EXAMPLES / "nagios" / "README.md").read_text()))
