"""A database's URL, with its password and without."""

from __future__ import annotations

import pytest

from scale0.history.segments.settings import password_of, without_password


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://ann:pa55@db:5432/scale0", "postgresql://ann@db:5432/scale0", "pa55"),
        ("postgresql://ann@db/scale0", "postgresql://ann@db/scale0", ""),
        (
            "postgresql://db/x?user=ann&password=pa55&sslmode=require",
            "postgresql://db/x?user=ann&sslmode=require",
            "pa55",
        ),
        ("postgresql://ann:a%40b%3Ac@db/x", "postgresql://ann@db/x", "a@b:c"),
        ("postgresql://u@%2Ftmp%2Fpg/x", "postgresql://u@%2Ftmp%2Fpg/x", ""),
    ],
)
def test_a_url_is_noted_without_its_password(url, shown, password):
    assert without_password(url) == shown
    assert password_of(url) == password
