"""The planted bugs of the evidence campaign: each patch fits the code, and names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evidence.attacks import MODULES
from evidence.main import KINDS, SHARES, parsed
from evidence.planting import PACKAGES, SIMULATION, Planted, places_of, plant, read_all
from evidence.site import ATTACKS
from simulator.promises import PROMISES

BUGS = read_all()
LISTED = set(re.findall(r"^\| ([A-Z]+-\d+) \|", Path("docs/promises.md").read_text(encoding="utf-8"), re.MULTILINE))


def test_there_are_at_least_sixty_bugs_of_every_part():
    assert len(BUGS) >= 60
    assert {bug.part for bug in BUGS} == set(SHARES)
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_old_text_of_a_patch_occurs_exactly_once(bug: Planted):
    for hunk in bug.hunks:
        name, _, rest = hunk.file.partition("/")
        lines = (PACKAGES[name] / rest).read_text(encoding="utf-8").splitlines()
        assert len(places_of(hunk, lines)) == 1, f"{bug.name}: {hunk.old}"
        assert hunk.old != hunk.new


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_patch_names_a_promise_and_what_must_find_it(bug: Planted):
    assert bug.what.endswith(".")
    if bug.part == SIMULATION:
        assert set(bug.promises) <= set(PROMISES)
        assert bug.run
    else:
        assert set(bug.promises) <= LISTED
        assert bug.only in KINDS[bug.part]


def test_planting_changes_a_copy_and_nothing_else(tmp_path: Path):
    bug = BUGS[0]
    before = {hunk.file: (PACKAGES["scale0"].parent / hunk.file).read_bytes() for hunk in bug.hunks}
    plant(bug, tmp_path)
    for file, text in before.items():
        assert (PACKAGES["scale0"].parent / file).read_bytes() == text
        assert (tmp_path / file).read_bytes() != text
    assert (tmp_path / "scale0" / "__init__.py").is_symlink()


def test_every_attack_names_a_promise_and_is_registered_once():
    assert len(MODULES) == 5
    assert len(ATTACKS) >= 80
    assert {one.promise for one in ATTACKS.values()} <= LISTED


def test_an_unknown_part_or_attack_is_refused(capsys: pytest.CaptureFixture[str]):
    for arguments in (["--parts", "weather"], ["--parts", "faults", "--only", "zmtp_1"], ["--only", "nothing"]):
        with pytest.raises(SystemExit):
            parsed(arguments)
    assert "is called nothing" in capsys.readouterr().err
