"""Named entries of the network document, for the commands of checks, handlers, silences and downtimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import AdminAccess
from scale0.cli.common.connection import connect
from scale0.cli.network.call import parsed
from scale0.client.admin.rows import entry_path
from scale0.kernel import codes

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


def entries(access: AdminAccess, *keys: str) -> list[list[dict[str, Any]]]:
    config = config_command(access, "get_config")["config"]
    return [config[key] for key in keys]


def put(access: AdminAccess, changes: dict[str, Any], hint: str = MORE) -> int:
    """Set paths to values; returns the new version of the document."""
    version: int = config_command(access, "patch_config", hint, set=changes)["version"]
    return version


def remove(access: AdminAccess, noun: str, names: Sequence[str], hint: str = MORE) -> int:
    """Remove entries; returns the new version of the document."""
    paths = [path(f"{noun}s", name) for name in names]
    try:
        version: int = config_command(access, "patch_config", hint, remove=paths)["version"]
    except errors.CommandError as error:
        if NOTHING_TO_REMOVE in error.message:
            step = f"list them with `scale0 {noun} list`"
            raise errors.CommandError(f"there is no {noun} {' '.join(names)}", step) from error
        raise
    return version


def config_command(access: AdminAccess, command: str, hint: str = MORE, **arguments: Any) -> Any:
    """One management command of the configuration; arguments that are None are left out."""
    from scale0.errors import CallError

    credentials = access.need()
    present = {name: value for name, value in arguments.items() if value is not None}
    with connect(access.join) as client:
        try:
            found = client.manage(command, **present, **credentials)
            for warning in found.get("warnings", ()) if isinstance(found, dict) else ():
                output.note(f"warning: {output.clean(warning)}")
            return found
        except CallError as error:
            if error.code == codes.MALFORMED:
                raise errors.CommandError(f"nothing was changed: {error.message}", hint) from error
            if error.code == codes.IN_USE:
                step = "see `scale0 config diff VERSION`, and give the current version with --expect"
                raise errors.CommandError(f"nothing was changed: {error.message}", step) from error
            raise
