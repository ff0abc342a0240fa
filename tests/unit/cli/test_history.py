"""Which versions of the network document lost, as `scale0 config history` tells."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.cli.network.config import lost_versions


def row(version: int, hash_: str, parent: str, current: bool = False) -> dict[str, Any]:
    return {"version": version, "hash": hash_, "parent": parent, "current": current}


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        ([], set()),
        ([row(2, "b", "a", True), row(1, "a", "")], set()),
        ([row(3, "c", "b", True), row(2, "x", "a"), row(2, "b", "a"), row(1, "a", "")], {"x"}),
        ([row(4, "d", "c", True), row(3, "y", "x"), row(3, "c", "b"), row(2, "x", "a"), row(2, "b", "a")], {"x", "y"}),
        ([row(3, "c", "b", True), row(2, "x", "a"), row(1, "a", "")], {"x"}),
        # A history that skipped versions cannot tell of what is older.
        ([row(9, "i", "h", True), row(5, "e", "d"), row(4, "d", "")], set()),
    ],
    ids=["none", "one line", "one lost", "two lost", "the winner's parent is not here", "skipped"],
)
def test_what_the_current_one_does_not_descend_from_has_lost(rows: list[dict[str, Any]], lost: set[str]):
    assert lost_versions(rows) == lost
