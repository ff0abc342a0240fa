"""What is built is what is meant, and works where nothing else is: no source tree, no home, no other packages.

Promise: PACK-1
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.fakes.processes import background, processes_with
from tests.fakes.waiting import until
from tests.processes.packaging import installed

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WORKER = """
import scale0
worker = scale0.Worker()

@worker.service("hello")
def hello(name: str = "world") -> str:
    return f"Hello, {name}!"
"""
PAGES = "scale0/http/pages"
ANSWER_SECONDS = 10


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return installed.build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_the_package_the_console_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
    assert {name.partition("/")[0] for name in names} == {"scale0", info}
    assert {"scale0/py.typed", f"{PAGES}/index.html", f"{info}/licenses/LICENSE"} <= names
    assert any(re.fullmatch(rf"{PAGES}/assets/.+\.js", name) for name in names)
    assert any(re.fullmatch(rf"{PAGES}/assets/.+\.css", name) for name in names)
    allowed = re.compile(r"scale0/(.+/)?(\w+\.py|py\.typed|\w+\.properties)|" + PAGES + r"/(assets/)?[\w-]+\.\w+")
    assert sorted(name for name in names if not name.startswith(info) and not allowed.fullmatch(name)) == []
    assert not [name for name in names if "/tests/" in name or "/test_" in name]


def test_the_source_archive_builds_the_same_wheel_without_node(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    shutil.rmtree(source / "console")  # then nothing can be built, and what was carried along counts
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "again")]
    made = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (again,) = (tmp_path / "again").glob("*.whl")
    assert again.read_bytes() == built[0].read_bytes()
    # A console that is not whole: no wheel, and a word why.
    shutil.rmtree(source / "src" / PAGES / "assets")
    again.unlink()
    refused = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "the console is not built" in refused.stdout + refused.stderr
    assert not list((tmp_path / "again").glob("*.whl"))


def test_a_network_runs_from_the_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    programs = installed.install(built[0], tmp_path / "venv", "agent", "http", "segments")
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    (here / "hello.py").write_text(WORKER)
    scale0 = str(programs / "scale0")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TMPDIR": str(here), "LANG": "C.UTF-8"}
    with background([scale0, "up"], here, environment) as up:
        up.wait_for("Helen monitors this machine")
        output = up.wait_for("/#/login?once=")
        frontend, backend = re.findall(r"tcp://([\d.:]+)", output)[:2]
        console = re.findall(r"(http://127\.0\.0\.1:\d+)/#/login\?once=s0_", output)[0]
        page = fetch(console + "/")
        used = re.findall(r'(?:src|href)="\./([^"]+)"', page.decode())
        assert len(used) >= 3
        for name in used:
            carried = zipfile.ZipFile(built[0]).read(f"{PAGES}/{name}")
            assert fetch(f"{console}/{name}") == carried
        environment |= {"SCALE0_JOIN": frontend, "SCALE0_JOIN_BACKEND": backend}
        with background([scale0, "worker", "hello.py"], here, environment) as worker:
            worker.wait_for("ready ")
            assert run(here, environment, scale0, "call", "hello", "Ada") == "Hello, Ada!"
            assert run(here, environment, scale0, "task", "submit", "hello", "Ada", "--wait").endswith("Hello, Ada!")
            worker.signal(signal.SIGINT)
            assert worker.wait() == 0, worker.output
        where = run(here, environment, str(programs / "python"), "-P", "-c", "import scale0; print(scale0.__file__)")
        assert where.startswith(str(tmp_path / "venv"))
        up.signal(signal.SIGINT)
        assert up.wait() == 0, up.output
    assert up.output.rstrip().endswith("stopped")
    until(lambda: not processes_with(here), f"all processes gone: {processes_with(here)}")


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        body: bytes = answer.read()
    return body


def run(folder: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
