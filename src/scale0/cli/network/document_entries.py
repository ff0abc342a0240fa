"""Entries of the network document, by name: read, put, changed and taken away.

Lives here: what the commands for checks, handlers, silences and downtimes share. Never here: what an entry means.
Invariant: an entry is changed by management like all of the document, and a refusal says what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from scale0.cli.common import authentication, errors
from scale0.cli.common.connection import connect
from scale0.cli.network.call import parsed
from scale0.client.admin.rows import entry_path

NOTHING_TO_REMOVE: Final = "there is nothing to remove"
"""What a broker says of a path that leads nowhere."""
path: Final = entry_path
MORE: Final = "docs/configuration.md has every key"


def pairs(words: Sequence[str], option: str) -> dict[str, Any]:
    """`key=value` each, a value being JSON or else text; each key once."""
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
    """The same, each value as the text that it is."""
    pairs(words, option)
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def entries(join: str, given: authentication.GivenCredentials, *keys: str) -> list[list[dict[str, Any]]]:
    """The entries under these keys."""
    credentials = authentication.need(given, join)
    with connect(join) as client:
        config = client.manage("get_config", **credentials)["config"]
    return [config[key] for key in keys]


def put(join: str, given: authentication.GivenCredentials, changes: dict[str, Any], hint: str = MORE) -> int:
    """Set paths to values; the new version of the document."""
    return _patch(join, given, changes, [], hint)


def take(join: str, given: authentication.GivenCredentials, noun: str, names: Sequence[str], hint: str = MORE) -> int:
    """Take entries away; the new version of the document."""
    from scale0.cli.common.errors import CommandError

    key = f"{noun}s"
    try:
        return _patch(join, given, {}, [path(key, name) for name in names], hint)
    except CommandError as trouble:
        if NOTHING_TO_REMOVE in trouble.message:
            step = f"`scale0 {noun} list` shows those that are there"
            raise CommandError(f"there is no {noun} {' '.join(names)}", step) from trouble
        raise


def _patch(join: str, given: authentication.GivenCredentials, put: dict[str, Any], taken: list[str], hint: str) -> int:
    from scale0.errors import CallError
    from scale0.kernel import codes

    credentials = authentication.need(given, join)
    with connect(join) as client:
        try:
            done = client.manage("patch_config", set=put, remove=taken, **credentials)
        except CallError as error:
            if error.code == codes.MALFORMED:
                raise errors.CommandError(f"nothing was changed: {error.message}", hint) from error
            raise
    version: int = done["version"]
    return version
