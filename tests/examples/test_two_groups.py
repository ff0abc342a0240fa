"""A group that is killed is replaced by the other without an error, as the README shows."""

# Promise: CLI-3
from __future__ import annotations

import pytest

from tests.cli.shell import EXAMPLES
from tests.examples.readme import commands, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(tmp_path):
    with terminal(EXAMPLES, tmp_path) as user:
        user.play(*commands((EXAMPLES / "two_groups" / "README.md").read_text()))
