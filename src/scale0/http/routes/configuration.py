"""The configuration of the network: show, compare, check, change and roll back.

A complete document replaces only the version from which it was made. The broker validates every change again.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter

from scale0.broker.admin.access import ADMIN, OPERATOR, VIEWER
from scale0.config import NetworkDocument, changed_paths, check_document, parse, parse_existing
from scale0.http.auth.authorization import ROLE
from scale0.http.auth.middleware import MAX_BODY_BYTES
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage
from scale0.kernel.errors import ConfigError

CONFIG: Final = "/api/v1/config"
MAX_VERSION: Final = 2**63 - 1
MAX_PATHS: Final = 1_000
"""Paths that one change may set or remove."""
MAX_PATH_CHARS: Final = 4_096
MAX_CHANGES: Final = 1_000
"""Differences that are listed."""
BROKER_KEYS: Final = ("version", "parent")
"""Keys that the broker sets itself."""

Version = Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]
KeyPath = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH_CHARS)]
VersionInPath = Annotated[int, PathParameter(ge=0, le=MAX_VERSION)]


class ConfigDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete document."""

    config: dict[str, Any]


class NewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete document, and the version from which it was made."""

    config: dict[str, Any]
    base: Version


class ConfigChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths to set, and paths to remove; with `base`, only if that version is current."""

    set: Annotated[dict[KeyPath, Any], msgspec.Meta(max_length=MAX_PATHS)] = {}
    remove: Annotated[list[KeyPath], msgspec.Meta(max_length=MAX_PATHS)] = []
    base: Version | None = None


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to restore, and the current one."""

    version: Version
    base: Version


@get(CONFIG, opt={ROLE: VIEWER}, summary="The configuration of the network")
async def show(context: Context) -> dict[str, Any]:
    """The version, the hash and the document."""
    return await context.read("get_config")


@get(CONFIG + "/history", opt={ROLE: VIEWER}, summary="All versions, the newest first")
async def history(context: Context, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Each with its author and time."""
    return await context.page("config_history", limit, after)


@get(CONFIG + "/versions/{number:int}", opt={ROLE: VIEWER}, summary="One version")
async def version(context: Context, number: VersionInPath) -> dict[str, Any]:
    """The version, the hash and the document."""
    return await context.read("get_config", version=number)


@get(CONFIG + "/diff", opt={ROLE: VIEWER}, summary="The differences between two versions")
async def diff(
    context: Context,
    before: Annotated[int, QueryParameter(name="from", ge=0, le=MAX_VERSION)],
    to: Annotated[
        int | None, QueryParameter(ge=0, le=MAX_VERSION, description="If absent: the current version.")
    ] = None,
) -> dict[str, Any]:
    """Each path with its value before and after; null: the path does not exist."""
    old = await context.read("get_config", version=before)
    new = await context.read("get_config", **({} if to is None else {"version": to}))
    items, more = await context.in_thread(lambda: compared(document_of(old), document_of(new)))
    return {"from": old["version"], "to": new["version"], "items": items, "more": more}


@post(
    CONFIG + "/check",
    opt={ROLE: VIEWER},
    status_code=200,
    request_max_body_size=MAX_BODY_BYTES,
    summary="Validate a document without changing anything",
)
async def check(context: Context, data: JSONBody[ConfigDraft]) -> dict[str, Any]:
    """`ok`, the reasons if it is invalid, and the differences to the current version."""
    current = await context.read("get_config")
    return await context.in_thread(lambda: checked(current, data.config))


@put(CONFIG, opt={ROLE: ADMIN}, request_max_body_size=MAX_BODY_BYTES, summary="Replace the configuration")
async def replace(context: Context, data: JSONBody[NewConfig]) -> dict[str, Any]:
    """The complete document; 409 if `base` is not the current version."""
    return await context.change("set_config", config=data.config, base=data.base)


@patch(CONFIG, opt={ROLE: OPERATOR}, request_max_body_size=MAX_BODY_BYTES, summary="Change parts of the configuration")
async def change(context: Context, data: JSONBody[ConfigChanges]) -> dict[str, Any]:
    """The paths are those of `scale0 config set`."""
    return await context.change("patch_config", set=data.set, remove=data.remove, base=data.base)


@post(CONFIG + "/rollback", opt={ROLE: ADMIN}, status_code=200, summary="Restore a version")
async def roll_back(context: Context, data: JSONBody[Rollback]) -> dict[str, Any]:
    """It becomes the next version; 409 if `base` is not the current version."""
    return await context.change("rollback_config", version=data.version, base=data.base)


def document_of(found: dict[str, Any]) -> NetworkDocument:
    return parse_existing(msgspec.json.encode(found["config"]), NetworkDocument)


def checked(current: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The answer about a document that would replace the current one."""
    try:
        document = parse(msgspec.json.encode(config), "json", NetworkDocument)
    except ConfigError as error:
        return {"ok": False, "reasons": error.reasons, "version": current["version"], "items": [], "more": False}
    reasons = check_document(document)
    items, more = compared(document_of(current), document)
    return {"ok": not reasons, "reasons": reasons, "version": current["version"], "items": items, "more": more}


def compared(old: NetworkDocument, new: NetworkDocument) -> tuple[list[dict[str, Any]], bool]:
    """The differences, and whether there are more than are listed."""
    paths = [one for one in changed_paths(old, new) if one[0] not in BROKER_KEYS]
    items = [{"path": path, "before": before, "after": after} for path, before, after in paths[:MAX_CHANGES]]
    return items, len(paths) > MAX_CHANGES


HANDLERS: Final[list[HTTPRouteHandler]] = [show, history, version, diff, check, replace, change, roll_back]
