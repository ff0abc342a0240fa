"""What the commands about keys share: the broker's folder, its stored keys, and their options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.authentication import DATA_DIR, LOCAL_FOLDER

if TYPE_CHECKING:
    from scale0.broker.cluster.replicated_keys import AdmittedKey
    from scale0.broker.edge.key_folder import KeyFolder

ROLES: Final = ("frontend", "backend", "peer")
MAX_LIFETIME_SECONDS: Final = 100 * 366 * 86_400
BROKER_FOLDER: Final = Path("var")
"""The default data folder of a broker."""
role_argument = click.argument("role", type=click.Choice(ROLES))
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=LOCAL_FOLDER,
    envvar=DATA_DIR,
    show_default=True,
    help=f"The broker's folder ({DATA_DIR}).",
)
NEVER: Final = "never"


class Lifetime(click.ParamType[float]):
    """How long a key is valid: seconds; 0: for ever."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from scale0.kernel.time_text import duration_seconds

        if value == NEVER:
            return 0.0
        seconds = duration_seconds(value)
        if not seconds or seconds > MAX_LIFETIME_SECONDS:
            self.fail(f"{value!r} is not valid: write a duration such as 90d, 12h or 4w, or {NEVER}", param, ctx)
        return float(seconds)


def stored_in(folder: KeyFolder) -> list[AdmittedKey]:
    """The keys that this folder accepts, and which broker stores each: this one, or those that replicated it."""
    from scale0.broker.cluster.replicated_keys import admitted_keys
    from scale0.broker.edge.replicated_key_folder import read_replicated_keys

    wall = time.time()
    own, (replicated, faults) = folder.table(wall).keys, read_replicated_keys(folder.path)
    for fault in faults:
        output.note(f"  warning: {fault}")
    return admitted_keys(own, replicated, "", folder.server().public, wall)


def existing(data_dir: Path) -> KeyFolder:
    """The folder of keys, or an error with the command that makes one."""
    from scale0.broker.edge.key_folder import KeyFolder

    folder = KeyFolder(data_dir)
    if not folder.server_file.exists() and data_dir == Path(LOCAL_FOLDER):
        folder = KeyFolder(BROKER_FOLDER)
    if not folder.server_file.exists():
        raise errors.CommandError(
            f"there are no keys in {data_dir}", "make them with `scale0 keys init --data-dir FOLDER`", errors.USAGE
        )
    folder.reserved = folder.read_reserved()
    return folder


def refuse_reserved(folder: KeyFolder, name: str) -> None:
    """An error for the name of an administrator: the audit log must not name anybody else by it."""
    from scale0.broker.edge.key_folder import reserved_text

    if name in folder.reserved:
        raise errors.CommandError(reserved_text(name), "choose another name", errors.USAGE)


def stored_key(folder: KeyFolder, role: str, name: str) -> AdmittedKey:
    found = [one for one in stored_in(folder) if (one.key.role, one.key.name) == (role, name) and not one.key.is_token]
    if not found:
        raise errors.CommandError(f"there is no {role} key {name}", "`scale0 keys list` lists the keys")
    return found[0]


def refuse_elsewhere(found: AdmittedKey) -> None:
    """An error unless the key is stored in this folder."""
    if found.broker:
        raise errors.CommandError(
            f"{found.key.name} is stored at the broker {found.broker}, not here", "run the command there"
        )
