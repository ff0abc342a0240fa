"""The files for GitHub and pre-commit parse, and every make target that they and CONTRIBUTING.md run exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
YAML_FILES = sorted([*(REPOSITORY / ".github").rglob("*.yml"), REPOSITORY / ".pre-commit-config.yaml"])
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
MAKE = re.compile(r"^\s*(?:- )?(?:run: )?make ([a-z][a-z-]*)", re.MULTILINE)


def read_yaml(path: Path) -> dict:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def targets() -> set[str]:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_a_yaml_file_parses(path):
    assert read_yaml(path)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_step_of_a_workflow_runs_something_with_bounded_time_and_rights(path):
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 300
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


@pytest.mark.parametrize("path", [*WORKFLOWS, REPOSITORY / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_make_command_is_a_target(path):
    named = set(MAKE.findall(path.read_text(encoding="utf-8")))
    assert named
    assert named <= targets()


def test_the_gate_of_pull_requests_runs_on_every_supported_python():
    ci = read_yaml(REPOSITORY / ".github" / "workflows" / "ci.yml")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert ci["jobs"]["check"]["strategy"]["matrix"]["python"] == supported
    assert {"make check", "make test"} <= {step.get("run") for job in ci["jobs"].values() for step in job["steps"]}


@pytest.mark.parametrize(
    "path", [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "SECURITY.md"], ids=lambda path: path.name
)
def test_every_path_that_a_page_for_contributors_names_exists(path):
    named = re.findall(r"`((?:src|tests|docs|scripts|simulator)/[\w./-]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
