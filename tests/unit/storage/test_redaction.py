"""Errors of PostgreSQL contain neither the URL nor the password, and stay readable."""

from __future__ import annotations

import pytest

from scale0.storage.postgres.connection import describe_error


@pytest.mark.parametrize(
    ("password", "text", "expected"),
    [
        ("x", "connection timeout expired", "connection timeout expired"),
        ("x", "password x is wrong", "password *** is wrong"),
        ("abc", "abcdef is not abc", "abcdef is not ***"),
        ("s3cret", "pres3crets and s3cret", "pre***s and ***"),
        ("a+b", "is a+b, a+bc", "is ***, a+bc"),
    ],
)
def test_a_short_password_is_masked_as_a_word_only(password: str, text: str, expected: str) -> None:
    url = f"postgresql://me:{password.replace('+', '%2B')}@db/scale0"
    assert describe_error(ValueError(f"{text}; {url}"), url) == f"{expected}; ***"
