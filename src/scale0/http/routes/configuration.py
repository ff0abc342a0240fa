"""The network's configuration: show, compare, check, change, roll back.

Lives here: the broker's commands for it, and comparing two versions. Never here: a rule of the document; `config` has
them all, and the broker applies them again. Invariant: a whole document is set only over the version that it was made
from.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter

from scale0.broker.admin.access import ADMIN, OPERATOR, VIEWER
from scale0.config import NetworkDocument, changed_paths, check_document, parse
from scale0.http.auth.authorization import ROLE
from scale0.http.auth.middleware import MAX_BODY_BYTES
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage
from scale0.kernel.errors import ConfigError

CONFIG: Final = "/api/v1/config"
MAX_VERSION: Final = 2**63 - 1
MAX_PATHS: Final = 1_000
"""That one change may set or remove."""
MAX_PATH_CHARS: Final = 4_096
MAX_CHANGES: Final = 1_000
"""Of two versions that are compared."""
DRAFT_KEYS: Final = ("version", "parent")
"""What a broker sets itself."""

Version = Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]
KeyPath = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH_CHARS)]
Numbered = Annotated[int, PathParameter(ge=0, le=MAX_VERSION)]


class ConfigDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole document."""

    config: dict[str, Any]


class NewConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole document, and the version that it was made from."""

    config: dict[str, Any]
    base: Version


class ConfigChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths that get a value, and paths that go; with `base`, only over that version."""

    set: Annotated[dict[KeyPath, Any], msgspec.Meta(max_length=MAX_PATHS)] = {}
    remove: Annotated[list[KeyPath], msgspec.Meta(max_length=MAX_PATHS)] = []
    base: Version | None = None


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to go back to, and the one that is current."""

    version: Version
    base: Version


@get(CONFIG, opt={ROLE: VIEWER}, summary="The configuration of the network")
async def show(desk: At) -> dict[str, Any]:
    """Its version, its hash and itself."""
    found: dict[str, Any] = await desk.read("get_config")
    return found


@get(CONFIG + "/history", opt={ROLE: VIEWER}, summary="Every version, the newest first")
async def history(desk: At, limit: Limit = DEFAULT_ROWS, after: After = None) -> ListPage:
    """Who made it and when."""
    return await desk.page("config_history", limit, after)


@get(CONFIG + "/versions/{number:int}", opt={ROLE: VIEWER}, summary="One version, whole")
async def version(desk: At, number: Numbered) -> dict[str, Any]:
    """Its version, its hash and itself."""
    found: dict[str, Any] = await desk.read("get_config", version=number)
    return found


@get(CONFIG + "/diff", opt={ROLE: VIEWER}, summary="What differs between two versions")
async def diff(
    desk: At,
    before: Annotated[int, QueryParameter(name="from", ge=0, le=MAX_VERSION)],
    to: Annotated[int | None, QueryParameter(ge=0, le=MAX_VERSION, description="Left out: the current one.")] = None,
) -> dict[str, Any]:
    """Each path with its value before and after; null stands for nothing."""
    old = await desk.read("get_config", version=before)
    new = await desk.read("get_config", **({} if to is None else {"version": to}))
    items, more = compared(document_of(old), document_of(new))
    return {"from": old["version"], "to": new["version"], "items": items, "more": more}


@post(
    CONFIG + "/check",
    opt={ROLE: VIEWER},
    status_code=200,
    request_max_body_size=MAX_BODY_BYTES,
    summary="Whether a document would be taken",
)
async def check(desk: At, data: JSONBody[ConfigDraft]) -> dict[str, Any]:
    """`ok`, the reasons why not, and what would change; nothing is changed."""
    current = await desk.read("get_config")
    try:
        document = parse(msgspec.json.encode(data.config), "json", NetworkDocument)
    except ConfigError as error:
        return {"ok": False, "reasons": error.reasons, "version": current["version"], "items": [], "more": False}
    reasons = check_document(document)
    items, more = compared(document_of(current), document)
    return {"ok": not reasons, "reasons": reasons, "version": current["version"], "items": items, "more": more}


@put(CONFIG, opt={ROLE: ADMIN}, request_max_body_size=MAX_BODY_BYTES, summary="Replace the configuration")
async def replace(desk: At, data: JSONBody[NewConfig]) -> dict[str, Any]:
    """The whole document; 409 if another version is current than `base`."""
    return await desk.change("set_config", config=data.config, base=data.base)


@patch(CONFIG, opt={ROLE: OPERATOR}, request_max_body_size=MAX_BODY_BYTES, summary="Change parts of the configuration")
async def change(desk: At, data: JSONBody[ConfigChanges]) -> dict[str, Any]:
    """Paths as `scale0 config set` takes them."""
    return await desk.change("patch_config", set=data.set, remove=data.remove, base=data.base)


@post(CONFIG + "/rollback", opt={ROLE: ADMIN}, status_code=200, summary="Go back to a version")
async def roll_back(desk: At, data: JSONBody[Rollback]) -> dict[str, Any]:
    """It becomes the next version; 409 if another version is current than `base`."""
    return await desk.change("rollback_config", version=data.version, base=data.base)


def document_of(found: dict[str, Any]) -> NetworkDocument:
    """A document that a broker gave."""
    return parse(msgspec.json.encode(found["config"]), "json", NetworkDocument)


def compared(old: NetworkDocument, new: NetworkDocument) -> tuple[list[dict[str, Any]], bool]:
    """What differs, and whether there is more than is told."""
    paths = [one for one in changed_paths(old, new) if one[0] not in DRAFT_KEYS]
    items = [{"path": path, "before": before, "after": after} for path, before, after in paths[:MAX_CHANGES]]
    return items, len(paths) > MAX_CHANGES


HANDLERS: Final[list[HTTPRouteHandler]] = [show, history, version, diff, check, replace, change, roll_back]
