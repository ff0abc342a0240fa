"""Named entries of the network document, for the commands of checks, handlers, silences and downtimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from scale0.cli.common import authentication, errors
from scale0.cli.common.connection import connect
from scale0.cli.network.call import parsed
from scale0.client.admin.rows import entry_path

NOTHING_TO_REMOVE: Final = "there is nothing to remove"
"""The broker's message about a path that does not exist."""
path: Final = entry_path
MORE: Final = "docs/configuration.md has every key"


def pairs(words: Sequence[str], option: str) -> dict[str, Any]:
    """`KEY=VALUE` words as a dict; a value is JSON or else text, and each key occurs once."""
    out: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {word!r}")
        if key in out:
            raise click.UsageError(f"{option} {key} is given twice")
        out[key] = parsed(value)
    return out


def texts(words: Sequence[str], option: str) -> dict[str, str]:
    """The same with text values."""
    pairs(words, option)
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def entries(join: str, given: authentication.GivenCredentials, *keys: str) -> list[list[dict[str, Any]]]:
    credentials = authentication.need(given, join)
    with connect(join) as client:
        config = client.manage("get_config", **credentials)["config"]
    return [config[key] for key in keys]


def put(join: str, given: authentication.GivenCredentials, changes: dict[str, Any], hint: str = MORE) -> int:
    """Set paths to values; returns the new version of the document."""
    return _patch(join, given, changes, [], hint)


def remove(join: str, given: authentication.GivenCredentials, noun: str, names: Sequence[str], hint: str = MORE) -> int:
    """Remove entries; returns the new version of the document."""
    key = f"{noun}s"
    try:
        return _patch(join, given, {}, [path(key, name) for name in names], hint)
    except errors.CommandError as error:
        if NOTHING_TO_REMOVE in error.message:
            step = f"list them with `scale0 {noun} list`"
            raise errors.CommandError(f"there is no {noun} {' '.join(names)}", step) from error
        raise


def _patch(
    join: str, given: authentication.GivenCredentials, put: dict[str, Any], removed: list[str], hint: str
) -> int:
    from scale0.errors import CallError
    from scale0.kernel import codes

    credentials = authentication.need(given, join)
    with connect(join) as client:
        try:
            done = client.manage("patch_config", set=put, remove=removed, **credentials)
        except CallError as error:
            if error.code == codes.MALFORMED:
                raise errors.CommandError(f"nothing was changed: {error.message}", hint) from error
            raise
    version: int = done["version"]
    return version
