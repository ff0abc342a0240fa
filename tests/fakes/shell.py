"""A shell for tests: `scale0` commands as a user types them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fakes.broker_process import BrokerProcess
from tests.fakes.processes import Background, background, environment, scale0_command
from tests.fakes.waiting import PATIENCE_SECONDS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = REPOSITORY / "examples"

VARIABLES: Final = ("SCALE0_JOIN", "SCALE0_JOIN_BACKEND", "SCALE0_TOKEN", "SCALE0_PASSWORD", "SCALE0_DATA_DIR")


class Shell:
    """One user's shell: a folder to be in, and a memory of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in environment().items() if name not in VARIABLES}
        self.environment = {**kept, "XDG_STATE_HOME": str(folder / "state"), **variables}

    def run(self, *words: str, stdin: str = "", seconds: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
        """`scale0 WORDS…`, to its end."""
        return subprocess.run(
            scale0_command(*words),
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=seconds,
            check=False,
        )

    def refuses(self, *words: str, status: int = 1, stdin: str = "") -> str:
        """What a command that ends with this status prints on stderr; it shows no traceback."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def background(self, *words: str) -> Iterator[Background]:
        """`scale0 WORDS… &`."""
        with background(scale0_command(*words), self.folder, self.environment) as running:
            yield running


def shell_of(broker: BrokerProcess, folder: Path, **variables: str) -> Shell:
    """A shell that is joined to this broker, without any right."""
    return Shell(folder, SCALE0_JOIN=broker.address(), SCALE0_JOIN_BACKEND=broker.address("backend"), **variables)


def manager_of(broker: BrokerProcess, folder: Path, **variables: str) -> Shell:
    """A shell that is joined to this broker and may read its token."""
    return shell_of(broker, folder, SCALE0_DATA_DIR=broker.config["data_dir"], **variables)
