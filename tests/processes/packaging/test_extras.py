"""The base install: small, and enough for a client, a worker and a broker; other commands name the extra to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import scale0
from scale0.cli.command_table import EXTRAS, MODULES
from scale0.kernel.edge.extras import PACKAGES
from tests.fakes.broker_process import BrokerProcess
from tests.processes.packaging import installed

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAX_PACKAGES = 15
MAX_BYTES = 60_000_000
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def size_of(name: str) -> int:
    files = (Path(str(file.locate())) for file in distribution(name).files or ())
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")


# Promise: PACK-3
def test_the_base_install_is_small():
    packages = sorted(installed.closure(PROJECT["dependencies"]))
    assert len(packages) + 1 <= MAX_PACKAGES, packages
    own = sum(file.stat().st_size for file in Path(scale0.__file__).parent.rglob("*.py"))
    assert sum(map(size_of, packages)) + own <= MAX_BYTES


def test_every_extra_and_every_command_that_needs_one_exists():
    assert set(PACKAGES) == set(PROJECT["optional-dependencies"]) - {"all", "dev"}
    (whole,) = PROJECT["optional-dependencies"]["all"]
    assert Requirement(whole).extras == set(PACKAGES)
    assert set(EXTRAS) <= set(MODULES)
    assert {extra for needed in EXTRAS.values() for extra in needed} <= set(PACKAGES)


@pytest.fixture
def bare(tmp_path):
    """The environment of a base install: no module of an extra can be imported."""
    blocked = {module for modules in PACKAGES.values() for module in modules}
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "SCALE0_JOIN": ""}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scale0", *arguments]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)


# Promise: PACK-3
@pytest.mark.parametrize("command", sorted(EXTRAS))
def test_a_command_without_its_extra_says_what_to_install(bare, command):
    done = run(bare, command)
    assert done.returncode == 2
    for extra in EXTRAS[command]:
        assert extra in done.stderr.partition("pip install")[2]


def test_help_needs_no_extra(bare):
    assert run(bare, "--help").returncode == 0
    for command in EXTRAS:
        assert run(bare, command, "--help").returncode == 0, command


# Promise: PACK-3
def test_a_broker_a_worker_and_a_client_need_no_extra(bare, tmp_path):
    broker = BrokerProcess(tmp_path / "broker", {"segments": ""})
    broker.prefix = ["env", f"PYTHONPATH={bare['PYTHONPATH']}"]
    broker.start()
    try:
        code = (
            "import sys, json, scale0\n"
            "worker = scale0.Worker(sys.argv[2])\n"
            "@worker.service('twice')\n"
            "def twice(n: int) -> int:\n"
            "    return 2 * n\n"
            "worker.start()\n"
            "with scale0.Client(sys.argv[1]) as net:\n"
            "    task = net.submit('twice', 21)\n"
            "    print(json.dumps([net.call('twice', 4), task.result(timeout=30)]))\n"
            "worker.stop()\n"
        )
        command = [sys.executable, "-c", code, broker.endpoints["frontend"], broker.endpoints["backend"]]
        done = subprocess.run(command, check=False, env=bare, capture_output=True, text=True, timeout=60)
    finally:
        broker.kill9()
    assert "scale0[segments]" in broker.log_text()
    assert json.loads(done.stdout) == [8, 42], done.stderr
