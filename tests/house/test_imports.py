"""The house rules, kept by every file of src/scale0: who imports whom, what is pure, what fits on a screen."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import scale0
from tests.house import rules

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "scale0"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else rules.ROOT


@pytest.fixture(scope="module")
def judged() -> tuple[list[str], dict[str, set[str]]]:
    """What is wrong with all files, and which rooms each room imports: to read a file takes longer than to judge it."""
    found: list[str] = []
    edges: dict[str, set[str]] = {}
    for path in SOURCES:
        room, text = room_of(path), path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(REPOSITORY)}:{complaint}" for complaint in rules.complaints(text, room)]
        others = {rules.room_of(module) for _, module in rules.imported(rules.parsed(text))}
        edges.setdefault(room, set()).update(other for other in others if other is not None and other != room)
    return found, edges


# Promise: HOUSE-1, HOUSE-5
def test_every_file_keeps_the_house_rules(judged):
    found, _ = judged
    assert not found, "\n" + "\n".join(found)


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


def test_every_room_is_on_the_map():
    rooms = {room_of(path) for path in SOURCES} - {rules.ROOT}
    assert rooms == set(rules.FLOOR_OF)
    assert all((PACKAGE / room / "__init__.py").is_file() for room in rooms)


# Promise: HOUSE-1
def test_rooms_do_not_import_each_other_in_a_circle(judged):
    _, edges = judged
    assert edges["cli"] >= {"io", "client"}
    assert rules.cycle(edges) == []


def test_the_version_is_said_once_and_the_same():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert scale0.__version__ == project["version"]


DOC = '"""What lives here."""\n'


@pytest.mark.parametrize(
    ("room", "planted"),
    [
        # who imports whom
        ("base", "from scale0.history.events import changes"),
        ("base", "import scale0.storage"),
        ("events", "from scale0 import broker"),
        ("store", "from scale0.tasks.core.queue import Queue"),
        ("broker", "from scale0.compat.majordomo import wire"),
        ("zerotask", "from scale0.broker.core.scheduler import Roster"),
        ("equus", "from scale0.io import runner"),
        ("majordomo", "if TYPE_CHECKING:\n    from scale0.monitoring import lines"),
        ("io", "from scale0.client import Client"),
        ("io", "def late():\n    from scale0.cli import main"),
        ("client", "import scale0.cli.main"),
        ("broker", "from scale0 import Client"),
        ("broker", "import scale0"),
        ("broker", "from . import wire"),
        ("attic", "from scale0.kernel import now"),
        # foreign packages with one room
        ("broker", "import zmq"),
        ("client", "from zmq.asyncio import Context"),
        ("testing", "import zmq.backend as z"),
        ("management", "from pyspark.sql import SparkSession"),
        # what nobody does
        ("io", "import pickle"),
        ("io", "from marshal import loads"),
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
        # what a pure room does not do
        ("base", "import asyncio"),
        ("events", "import socket"),
        ("broker", "from concurrent.futures import Future"),
        ("broker", "import time\nnow = time.time()"),
        ("broker", "import time as t\nnow = t.monotonic()"),
        ("zerotask", "from time import monotonic\ndef machine(clock=monotonic): ..."),
        ("equus", "from datetime import datetime, UTC\nnow = datetime.now(UTC)"),
        ("equus", "import datetime\nnow = datetime.date.today()"),
        ("majordomo", "import random\nrandom.random()"),
        ("majordomo", "from random import choice\nchoice([1])"),
        ("broker", "import uuid\nuuid.uuid4()"),
        ("broker", "import os\nos.urandom(8)"),
        ("broker", "import secrets\nsecrets.token_hex()"),
        ("config", "text = open('broker.json').read()"),
        # names
        ("io", "class SocketManager: ..."),
        ("cli", "class ClickUtils: ..."),
    ],
)
def test_a_planted_violation_is_seen(room, planted):
    assert rules.complaints(f"{DOC}{planted}\n", room)


@pytest.mark.parametrize(
    ("room", "innocent"),
    [
        (
            "broker",
            "from scale0.kernel import codes\nfrom scale0.config import documents\nfrom scale0.storage import writes",
        ),
        ("broker", "from scale0 import __version__"),
        ("zerotask", "from scale0.tasks import queue"),
        ("store", "import sqlite3\nfrom scale0.history.events import changes"),
        ("io", "import asyncio\nimport time\nimport zmq\nnow = time.monotonic()\nfrom scale0.broker import machine"),
        ("testing", "from scale0.client import Client"),
        ("pipeline", "from pyspark.sql import functions"),
        ("cli", "from scale0.testing import sim\nfrom scale0.http import views"),
        (rules.ROOT, "from scale0.client import Client"),
        ("broker", "import random\ndice = random.Random(7)\ndice.random()"),
        ("broker", "def age(now, time):\n    return now.time - time.time"),
        ("broker", "import re\nre.compile('x')\nself.open()\nself.exec()"),
        ("equus", "def open(door): ...\nopen(1)"),
        ("equus", "from datetime import UTC, datetime\nd = datetime.fromtimestamp(0, UTC)"),
        ("io", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
    ],
)
def test_an_innocent_file_is_left_alone(room, innocent):
    assert rules.complaints(f"{DOC}{innocent}\n", room) == []


def test_a_file_without_a_docstring_is_seen():
    assert rules.complaints("x = 1\n", "io") == ["1: no module docstring"]


def test_a_long_file_is_seen_and_one_at_the_limit_is_not():
    fits = DOC + "x = 1\n" * (rules.MAX_FILE_LINES - 1)
    assert rules.complaints(fits, "io") == []
    assert rules.complaints(fits + "x = 1\n", "io")


def test_a_long_function_is_seen_and_one_at_the_limit_is_not():
    fits = f"{DOC}class C:\n    async def f(self):\n" + "        x = 1\n" * (rules.MAX_FUNCTION_LINES - 1)
    assert rules.complaints(fits, "io") == []
    assert rules.complaints(fits + "        x = 1\n", "io")


def test_a_circle_of_rooms_is_seen():
    assert rules.cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert rules.cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
