"""Commands about the network document: read, change, list, roll back (PROTOCOL 4 and 12).

Invariants: a change names the version that it is based on, or says that any version will do; it is validated as a whole
before it is made; a rollback is a new version.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from scale0.broker.admin.access import ADMIN, OPERATOR, VIEWER
from scale0.broker.admin.commands import AdminCall, AdminCommands, AdminResult, ReadHistory
from scale0.broker.admin.document_access import forbidden_keys
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.members import Members
from scale0.broker.core.state import BrokerState
from scale0.config import NetworkDocument, changed_paths, check_document, parse, patch
from scale0.config.literal_secrets import literal_secrets
from scale0.kernel import codes
from scale0.kernel.errors import ConfigError, Refusal
from scale0.storage.rows import DocumentRow, ReadDocument, ReadDocuments

MAX_VERSION_DIGITS: Final = 18
"""The most digits that fit a store's integer."""


class ConfigCommands:
    def __init__(
        self, management: AdminCommands, state: BrokerState, documents: ConfigDocument, members: Members
    ) -> None:
        self._management = management
        self._state = state
        self._documents = documents
        self._members = members
        management.table.update(
            {
                "get_config": (VIEWER, self._get_config),
                "config_history": (VIEWER, self._history),
                "set_config": (ADMIN, self._set_config),
                "patch_config": (OPERATOR, self._patch_config),
                "rollback_config": (ADMIN, self._rollback),
            }
        )

    def _get_config(self, call: AdminCall) -> AdminResult | None:
        documents = self._documents
        if call.request.version is not None and call.request.version != documents.version:
            call.effects.ask(ReadHistory(ReadDocument(version=call.request.version), call, shown_document))
            return None
        return AdminResult(
            {"version": documents.version, "hash": documents.hash, "config": msgspec.Raw(documents.body)}
        )

    def _set_config(self, call: AdminCall) -> AdminResult:
        given = call.body or as_json(call.request.config)
        document = parse(given, "json", NetworkDocument)
        self._must_be_based_on(call.request.base)
        return self._make_current(call, document)

    def _must_be_based_on(self, base: int | None) -> None:
        if base != self._documents.version:
            message = f"the change is based on version {base}, but version {self._documents.version} is current"
            raise Refusal(codes.IN_USE, message)

    def _patch_config(self, call: AdminCall) -> AdminResult:
        if call.request.base is not None:
            self._must_be_based_on(call.request.base)
        old = self._documents.document
        wanted = patch(old, call.request.set, call.request.remove)
        forbidden = forbidden_keys(call.admin.role, old, wanted)
        if forbidden:
            names = ", ".join(forbidden)
            message = f"the role {call.admin.role} may not change {names}: an admin may"
            raise Refusal(codes.NOT_ALLOWED, message)
        return self._make_current(call, wanted)

    def _make_current(self, call: AdminCall, wanted: NetworkDocument) -> AdminResult:
        self._management.must_have_room()
        if not self._state.config.config_service and self._state.config.peers:
            raise Refusal(codes.NOT_ALLOWED, "this broker has no config_service: change it on one that has")
        old = self._documents.document
        document = msgspec.structs.replace(wanted, version=old.version + 1, parent=self._documents.hash)
        reasons = check_document(document)
        if reasons:
            raise ConfigError(reasons)
        changes = changed_paths(old, document)
        self._documents.change(document, call.admin.name, list(self._members.by_name.values()), call.now, call.effects)
        result: dict[str, Any] = {"version": self._documents.version, "hash": self._documents.hash}
        if warnings := literal_secrets(document):
            result["warnings"] = warnings
        paths = [path for path, _before, _after in changes if path not in ("version", "parent")]
        return AdminResult(result, old.version, {"version": document.version, "paths": paths[:100]}, changed=True)

    def _history(self, call: AdminCall) -> None:
        limit = max(1, min(call.request.limit, 1_000))
        after = call.request.after or ""
        before = int(after) if after.isascii() and after.isdigit() and len(after) <= MAX_VERSION_DIGITS else None
        call.effects.ask(
            ReadHistory(ReadDocuments(limit=limit, before_version=before), call, partial(shown_rows, limit))
        )

    def _rollback(self, call: AdminCall) -> None:
        if call.request.version is None:
            raise Refusal(codes.MALFORMED, "version is missing: name the version to restore")
        if call.request.base is not None:
            self._must_be_based_on(call.request.base)
        call.effects.ask(ReadHistory(ReadDocument(version=call.request.version), call, self._roll_back_to))

    def _roll_back_to(self, call: AdminCall, value: DocumentRow | None) -> AdminResult:
        if value is None:
            raise Refusal(codes.NO_SUCH_SERVICE, f"version {call.request.version} is not in the history")
        return self._make_current(call, parse(value.body, "json", NetworkDocument))


def as_json(value: Any) -> bytes:
    """Convert a MessagePack document to JSON; some values of MessagePack have no JSON form."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"config cannot be encoded as JSON: {error}") from error


def shown_document(call: AdminCall, value: DocumentRow | None) -> AdminResult:
    if value is None:
        raise Refusal(codes.NO_SUCH_SERVICE, f"version {call.request.version} is not in the history")
    return AdminResult({"version": value.version, "hash": value.hash, "config": msgspec.Raw(value.body)})


def document_row(row: DocumentRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "hash": row.hash,
        "parent": row.parent,
        "time": row.time_us / 1_000_000,
        "author": row.author,
        "current": row.current,
    }


def shown_rows(limit: int, _call: AdminCall, rows: tuple[DocumentRow, ...]) -> AdminResult:
    last = str(rows[-1].version) if len(rows) >= limit else None
    return AdminResult({"items": [document_row(row) for row in rows], "next": last})
