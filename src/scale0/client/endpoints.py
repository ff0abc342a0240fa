"""Endpoints that users give: one, or several.

Lives here: what an endpoint looks like. Never here: which one is used.
"""

from __future__ import annotations

from collections.abc import Sequence


def endpoints_of(given: str | Sequence[str], example: str) -> list[str]:
    """As a list; ValueError, with an example, for anything that is none."""
    endpoints = [given] if isinstance(given, str) else list(given)
    if not endpoints or not all("://" in place for place in endpoints):
        raise ValueError(f"an endpoint looks like {example}, not {given!r}")
    return endpoints
