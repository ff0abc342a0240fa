"""Commands about tokens: log in and out, exchange a one-time link, show the current user, issue, list and revoke
(PROTOCOL 4).

Invariant: a token is sent once, to the client that requested it; lists identify it by a prefix of its digest.
"""

from __future__ import annotations

from typing import Any

from scale0.broker.admin.access import (
    ADMIN,
    EXCHANGE_LINK,
    LINK_SESSION_SECONDS,
    MAX_TOKEN_SECONDS,
    RANKS,
    SESSION_SECONDS,
    TOKEN_ID_CHARS,
    VIEWER,
    Access,
    digest_of,
    is_link,
    role_of,
)
from scale0.broker.admin.commands import AdminCall, AdminCommands, AdminResult
from scale0.broker.admin.views import page
from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity
from scale0.storage.rows import TokenRow


class TokenCommands:
    def __init__(self, management: AdminCommands, access: Access) -> None:
        self._management = management
        self._access = access
        management.table.update(
            {
                "login": (VIEWER, self._login),
                EXCHANGE_LINK: (VIEWER, self._exchange_link),
                "logout": (VIEWER, self._logout),
                "whoami": (VIEWER, self._whoami),
                "issue_token": (ADMIN, self._issue),
                "list_tokens": (ADMIN, self._list),
                "revoke_token": (ADMIN, self._revoke),
            }
        )

    def _login(self, call: AdminCall) -> AdminResult:
        self._management.must_have_room()
        admin, wall = call.admin, call.now.wall
        # A token cannot extend its own validity by repeated logins.
        seconds = SESSION_SECONDS if admin.expires is None else min(SESSION_SECONDS, admin.expires - wall)
        token = self._access.issue(admin.name, admin.role, seconds, call.now, call.effects, parent=admin.digest)
        return AdminResult({"token": token, "expires": wall + seconds, "role": admin.role}, changed=True)

    def _exchange_link(self, call: AdminCall) -> AdminResult:
        """A session for a link. Both are one turn's writes: the link ends in the commit that stores the session."""
        self._management.must_have_room()
        link = call.admin
        if not link.once:
            raise Refusal(codes.WRONG_CREDENTIALS, f"{EXCHANGE_LINK} needs a one-time link as auth_token")
        self._access.revoke(lambda row: row.digest == link.digest, call.effects)
        token = self._access.issue(link.name, link.role, LINK_SESSION_SECONDS, call.now, call.effects)
        result = {"token": token, "expires": call.now.wall + LINK_SESSION_SECONDS, "role": link.role}
        return AdminResult(result, changed=True)

    def _logout(self, call: AdminCall) -> AdminResult:
        count = self._access.end(call.admin.digest, call.effects)
        return AdminResult({"revoked": count}, changed=count > 0)

    def _whoami(self, call: AdminCall) -> AdminResult:
        return AdminResult({"name": call.admin.name, "role": call.admin.role, "expires": call.admin.expires})

    def _issue(self, call: AdminCall) -> AdminResult:
        self._management.must_have_room()
        name, role, seconds = call.request.name, call.request.role or VIEWER, call.request.ttl or SESSION_SECONDS
        if name is None or not is_identity(name) or role not in RANKS or not 0 < seconds <= MAX_TOKEN_SECONDS:
            raise Refusal(
                codes.MALFORMED, "a token needs a name, a role (viewer, operator, admin) and a ttl in seconds"
            )
        if self._access.is_reserved(name):
            raise Refusal(codes.IN_USE, f"{name} is the name of an administrator: choose another name")
        once = call.request.once
        token = self._access.issue(name, role, seconds, call.now, call.effects, once)
        result = {
            "token": token,
            "id": token_id(digest_of(token)),
            "name": name,
            "role": role,
            "expires": call.now.wall + seconds,
            "once": once,
        }
        return AdminResult(result, after={"name": name, "role": role, "once": once}, changed=True)

    def _list(self, call: AdminCall) -> AdminResult:
        alive = self._access.valid_tokens(call.now)
        return AdminResult(page(alive, lambda row: row.digest, token_row, call.request.limit, call.request.after))

    def _revoke(self, call: AdminCall) -> AdminResult:
        request = call.request
        digest = digest_of(request.token) if request.token else None

        def is_meant(row: TokenRow) -> bool:
            return row.digest == digest or row.name == request.name or token_id(row.digest) == request.token_id

        count = self._access.revoke(is_meant, call.effects)
        if not count:
            raise Refusal(codes.NO_SUCH_SERVICE, "unknown token: give its name, its token_id, or the token itself")
        return AdminResult(
            {"revoked": count}, after={"name": request.name or request.token_id, "revoked": count}, changed=True
        )


def token_id(digest: str) -> str:
    return digest[:TOKEN_ID_CHARS]


def token_row(row: TokenRow) -> dict[str, Any]:
    return {
        "id": token_id(row.digest),
        "name": row.name,
        "role": role_of(row),
        "expires": row.expires_us / 1_000_000,
        "once": is_link(row),
    }
