"""Tasks are seen to progress, to be tried again, to wait, to go first and to be cancelled, as the README shows."""

# Promise: CLI-3
from __future__ import annotations

import pytest

from tests.examples.readme import commands, free_ports, lone, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_prints_what_its_readme_shows(tmp_path):
    folder = lone("tasks_with_progress", tmp_path)
    with terminal(folder, tmp_path, free_ports()) as user:
        user.play(*commands((folder / "README.md").read_text()))
