"""The house rules, kept by every file of src/scale0: who imports whom, what is pure, what fits on a screen."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import scale0
from tests.unit.repository import rules

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = REPOSITORY / "src" / "scale0"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SAME_NAME = {
    # Both protocols have these commands on the wire; their message classes are named after them.
    "Enrol": "ENROL, enrol",
    "Enrolled": "ENROLLED, enrolled",
    "Error": "ERROR, error",
    "Hello": "HELLO, hello",
}
"""Class names that two subjects may use, and why."""


def module_of(path: Path) -> str:
    """The dotted name below `scale0`; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Promise: HOUSE-1, HOUSE-5
def test_every_file_keeps_the_rules():
    found = [
        f"{path.relative_to(REPOSITORY)}:{complaint}"
        for path in SOURCES
        for complaint in rules.complaints(path.read_text(encoding="utf-8"), module_of(path))
    ]
    assert not found, "\n" + "\n".join(found)


# Promise: HOUSE-1
def test_every_subject_has_a_layer_and_every_layer_exists():
    folders = {path.parent for path in SOURCES} - {PACKAGE}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
    modules = {module_of(path) for path in SOURCES}
    assert {module for module in modules if not rules.subject_of(module)} == {"", "__main__", "history"}
    assert set(rules.LAYER_OF) <= modules


def class_names() -> dict[str, set[str]]:
    """Every class name of the package, and the subjects that use it."""
    subjects: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                subjects.setdefault(node.name, set()).add(module_of(path).partition(".")[0])
    return subjects


# Promise: HOUSE-8
def test_no_class_name_is_used_by_two_subjects():
    twice = {name: sorted(subjects) for name, subjects in class_names().items() if len(subjects) > 1}
    assert {name: twice[name] for name in sorted(twice) if name not in SAME_NAME} == {}
    assert sorted(set(SAME_NAME) - set(twice)) == [], "listed, but used once"


# Promise: HOUSE-5
def test_no_script_benchmark_or_example_makes_code_of_what_it_reads():
    """Scripts, benchmarks and examples as well as the package: people copy them."""
    others = [path for name in ("scripts", "benchmarks", "examples") for path in sorted((REPOSITORY / name).rglob("*"))]
    texts = {path: path.read_text(encoding="utf-8") for path in others if is_python(path)}
    assert {"build_console.py", "soak", "spark-cluster", "hello_worker.py", "networks.py"} <= {p.name for p in texts}
    found = [
        f"{path.relative_to(REPOSITORY)}:{complaint}"
        for path, text in texts.items()
        for complaint in rules.dangers(ast.parse(text))
    ]
    assert not found, "\n" + "\n".join(found)


def is_python(path: Path) -> bool:
    """By its ending, or by its first line."""
    if not path.is_file() or "__pycache__" in path.parts or path.suffix not in ("", ".py"):
        return False
    return path.suffix == ".py" or b"python" in path.read_bytes().partition(b"\n")[0]


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert scale0.__version__ == project["version"]


DOC = '"""What lives here."""\n'


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        # who imports whom
        ("kernel", "from scale0.history.events import changes"),
        ("kernel", "import scale0.storage"),
        ("history.events.tasks", "from scale0 import broker"),
        ("storage", "from scale0.tasks.core.queue import Queue"),
        ("broker.core.broker", "from scale0.compat.majordomo import wire"),
        ("broker.core.requests", "from scale0.tasks.core.tasks import Tasks"),
        ("broker.core.requests", "from scale0.broker.main import composition"),
        ("tasks.core.queue", "from scale0.broker.edge import sockets"),
        ("monitoring.helen.core.helen", "from scale0.monitoring.helen.edge import process"),
        ("compat.majordomo.clients", "if TYPE_CHECKING:\n    from scale0.monitoring import pki"),
        ("broker.main.process", "from scale0.client import Client"),
        ("http.app", "def late():\n    from scale0.cli import main"),
        ("client", "import scale0.cli.main"),
        ("broker.core.broker", "from scale0 import Client"),
        ("broker.core.broker", "import scale0"),
        ("broker.core.broker", "from . import wire"),
        ("attic", "from scale0.kernel import clock"),
        # third-party packages
        ("broker.core.broker", "import zmq"),
        ("client", "from zmq.asyncio import Context"),
        ("testing", "import zmq.backend as z"),
        ("http", "from pyspark.sql import SparkSession"),
        # what nobody does
        ("broker.edge.sockets", "import pickle"),
        ("broker.edge.sockets", "from marshal import loads"),
        ("cli", "import os\nos.system('ls')"),
        ("cli", "from os import popen as p\np('ls')"),
        ("cli", "eval('1')"),
        ("cli", "exec('1')"),
        ("cli", "import subprocess\nsubprocess.run('ls', shell=True)"),
        ("cli", "import subprocess\nsubprocess.run('ls', shell=yes)"),
        ("cli", "import asyncio\nasyncio.get_event_loop().subprocess_shell(str, 'ls')"),
        ("cli", "import builtins\nbuiltins.exec('1')"),
        ("cli", "__import__('pickle')"),
        ("config", "from xml.etree import ElementTree"),
        ("config", "import yaml\nyaml.load('a: 1', yaml.SafeLoader)"),
        ("client", "from multiprocessing import Queue"),
        ("client", "from concurrent.futures import ProcessPoolExecutor as P\nP()"),
        ("pipeline", "import numpy\nnumpy.load('x', allow_pickle=True)"),
        # what a pure package does not do
        ("kernel", "import asyncio"),
        ("history.events", "import socket"),
        ("broker.core.broker", "from concurrent.futures import Future"),
        ("broker.core.broker", "import time\nnow = time.time()"),
        ("broker.core.broker", "import time as t\nnow = t.monotonic()"),
        ("tasks.core.queue", "from time import monotonic\ndef machine(clock=monotonic): ..."),
        ("monitoring.helen.core.helen", "from datetime import datetime, UTC\nnow = datetime.now(UTC)"),
        ("monitoring.helen.core.helen", "import datetime\nnow = datetime.date.today()"),
        ("compat.majordomo.clients", "import random\nrandom.random()"),
        ("compat.majordomo.clients", "from random import choice\nchoice([1])"),
        ("broker.core.broker", "import uuid\nuuid.uuid4()"),
        ("broker.core.broker", "import os\nos.urandom(8)"),
        ("broker.core.broker", "import secrets\nsecrets.token_hex()"),
        ("config", "text = open('broker.json').read()"),
        # names
        ("broker.edge.sockets", "class SocketManager: ..."),
        ("cli", "class ClickUtils: ..."),
    ],
)
def test_a_planted_violation_is_seen(module, planted):
    assert rules.complaints(f"{DOC}{planted}\n", module)


@pytest.mark.parametrize(
    ("module", "innocent"),
    [
        (
            "broker",
            "from scale0.kernel import codes\nfrom scale0.config import network\nfrom scale0.storage import rows",
        ),
        ("broker.core.broker", "from scale0 import __version__"),
        ("tasks.core.queue", "from scale0.broker.core.scheduler import Scheduler"),
        ("storage", "import sqlite3\nfrom scale0.history.events import changes"),
        (
            "broker.edge.sockets",
            "import asyncio\nimport time\nnow = time.monotonic()\nfrom scale0.kernel import machine",
        ),
        ("testing", "from scale0.client import Client"),
        ("pipeline", "from pyspark.sql import functions"),
        ("cli", "from scale0.http import app"),
        ("", "from scale0.client import Client"),
        ("broker.core.broker", "import random\ndice = random.Random(7)\ndice.random()"),
        ("broker.core.broker", "def age(now, time):\n    return now.time - time.time"),
        ("broker.core.broker", "import re\nre.compile('x')\nself.open()\nself.exec()"),
        ("monitoring.helen.core.helen", "def open(door): ...\nopen(1)"),
        ("monitoring.helen.core.helen", "from datetime import UTC, datetime\nd = datetime.fromtimestamp(0, UTC)"),
        ("broker.edge.sockets", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
    ],
)
def test_an_innocent_file_is_left_alone(module, innocent):
    assert rules.complaints(f"{DOC}{innocent}\n", module) == []


def test_a_file_without_a_docstring_is_seen():
    assert rules.complaints("x = 1\n", "broker.edge.sockets") == ["1: no module docstring"]


def test_a_long_file_is_seen_and_one_at_the_limit_is_not():
    fits = DOC + "x = 1\n" * (rules.MAX_FILE_LINES - 1)
    assert rules.complaints(fits, "cli.main") == []
    assert rules.complaints(fits + "x = 1\n", "broker.edge.sockets")


def test_a_long_function_is_seen_and_one_at_the_limit_is_not():
    fits = f"{DOC}class C:\n    async def f(self):\n" + "        x = 1\n" * (rules.MAX_FUNCTION_LINES - 1)
    assert rules.complaints(fits, "cli.main") == []
    assert rules.complaints(fits + "        x = 1\n", "broker.edge.sockets")
