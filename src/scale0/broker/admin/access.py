"""Authentication and roles of administrators: passwords, tokens and their limits.

Invariants: a password is hashed off the loop, one at a time for each connection and name, and only after the limits are
checked; a limit never depends on what the sender writes besides the name; only the digests of tokens are stored; each
wrong password increases the delay of the answer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.storage.rows import DropToken, PutToken, TokenRow
from scale0.transport.core import messages

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
RANKS: Final = {VIEWER: 0, OPERATOR: 1, ADMIN: 2}

SESSION_SECONDS: Final = 3_600.0
MAX_TOKEN_SECONDS: Final = 366 * 86_400.0
MAX_VERIFYING: Final = 8
"""Passwords being hashed at once, for all connections: hashing is slow on purpose."""
MAX_WAITING: Final = 64
"""Passwords that wait for their turn; those of a key and a name that were right before may be as many again."""
MAX_OF_KEY: Final = 8
"""Passwords of one key, or of one connection without a key, that are hashed or wait for their turn."""
MAX_OF_CONNECTION: Final = 32
"""Names for which one connection may wait for a delayed answer."""
MAX_PROVEN: Final = 1_000
FIRST_DELAY_SECONDS: Final = 0.25
"""The delay after the first wrong password; it doubles each time."""
MAX_DELAY_SECONDS: Final = 30.0
MAX_TOKENS: Final = 10_000
MAX_ORIGIN_CHARS: Final = 128
LOCAL_NAME: Final = "local"
"""The name of the token of this machine."""
TOKEN_ID_CHARS: Final = 12
"""Length of the digest prefix that identifies a token in lists."""
MAX_FAILURES: Final = 10_000
"""Names whose wrong passwords are counted."""
DECOY_HASH: Final = "$argon2id$v=19$m=65536,t=3,p=1$ESwJrFqnorJwpW6KxPLmIQ$QG17vnpGTIRTKW/wvyWJ8vt7Wsde3pumZsO8yt4wywQ"
"""The hash for unknown names, so that response times do not reveal which names exist."""


class AdminAccount(NamedTuple):
    """An authenticated administrator."""

    name: str
    role: str
    expires: float | None = None
    """When the token expires (wall clock); None: a password, or the token of this machine."""
    digest: str = ""


class VerifyPassword(msgspec.Struct, frozen=True, eq=False):
    """An Ask: does this password match this hash? The answer is a bool."""

    password: str
    password_hash: str
    connection: Connection
    request: messages.ManagementReq
    body: bytes

    def __repr__(self) -> str:
        return f"VerifyPassword({self.request.auth_id!r})"


class Access:
    def __init__(self, state: BrokerState, tokens: Iterable[TokenRow], local_digest: str | None) -> None:
        self._state = state
        self._tokens = {token.digest: token for token in tokens}
        self._local = local_digest
        self._unanswered: dict[Connection, set[str]] = {}
        """By connection: the names whose password has no answer yet, delayed answers included."""
        self._hashing = 0
        """Passwords being hashed: delayed answers do not count, so that they cannot lock out others."""
        self._waiting: deque[VerifyPassword] = deque()
        """Passwords that are hashed next."""
        self._of_key: Counter[str | Connection] = Counter()
        """By key: passwords that are hashed or wait."""
        self._proven: dict[tuple[str, str], None] = {}
        """Keys and names whose password was right: they come first, so that a flood of others does not stop them."""
        self._failures: dict[str, int] = {}

    def admit(
        self, connection: Connection, request: messages.ManagementReq, body: bytes, now: Now, effects: Effects
    ) -> AdminAccount | None:
        """Authenticate the sender; None when a password must be verified first. Raises `Refusal`."""
        if request.auth_token is not None:
            return self._by_token(request.auth_token, now)
        if request.auth_password is None or len(request.auth_id) > MAX_IDENTITY_CHARS:
            raise Refusal(
                codes.WRONG_CREDENTIALS, "credentials are missing: give auth_id and auth_password, or auth_token"
            )
        names = self._unanswered.get(connection, set())
        key, is_proven = key_of(connection), (connection.user_id, request.auth_id) in self._proven
        if request.auth_id in names or len(names) >= MAX_OF_CONNECTION or self._of_key[key] >= MAX_OF_KEY:
            raise Refusal(codes.TOO_MANY, "another password of this client is being verified: try again later")
        if len(self._waiting) >= MAX_WAITING * (1 + is_proven):
            raise Refusal(codes.TOO_MANY, "too many passwords wait to be verified: try again later")
        self._unanswered.setdefault(connection, names).add(request.auth_id)
        self._of_key[key] += 1
        hashes = [admin.password_hash for admin in self._state.config.admins if admin.auth_id == request.auth_id]
        ask = VerifyPassword(request.auth_password, hashes[0] if hashes else DECOY_HASH, connection, request, body)
        (self._waiting.appendleft if is_proven else self._waiting.append)(ask)
        self._hash_next(effects)
        return None

    def _hash_next(self, effects: Effects) -> None:
        while self._waiting and self._hashing < MAX_VERIFYING:
            self._hashing += 1
            effects.ask(self._waiting.popleft())

    def verified(self, ask: VerifyPassword, right: bool, effects: Effects) -> AdminAccount | float:
        """The result of a verified password: an administrator, or the seconds to delay the refusal."""
        self._hashing -= 1
        key, name = key_of(ask.connection), ask.request.auth_id
        self._of_key[key] -= 1
        if not self._of_key[key]:
            del self._of_key[key]
        self._hash_next(effects)
        for admin in self._state.config.admins:
            if admin.auth_id == name and right:
                self.done(ask)
                self._failures.pop(name, None)
                if ask.connection.user_id and len(self._proven) < MAX_PROVEN:
                    self._proven[ask.connection.user_id, name] = None
                return AdminAccount(name, admin.role)
        if len(self._failures) >= MAX_FAILURES:
            self._failures.clear()
        times = self._failures.get(name, 0)
        self._failures[name] = times + 1
        return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(times, 20))

    def done(self, ask: VerifyPassword) -> None:
        """The password was answered: the connection may try the next one."""
        names = self._unanswered[ask.connection]
        names.discard(ask.request.auth_id)
        if not names:
            del self._unanswered[ask.connection]

    def issue(self, name: str, role: str, seconds: float, now: Now, effects: Effects) -> str:
        """Issue a new token; only its digest is stored."""
        if len(self._tokens) >= MAX_TOKENS:
            self._forget_expired(now, effects)
        if len(self._tokens) >= MAX_TOKENS:
            raise Refusal(codes.TOO_MANY, "the limit of stored tokens is reached: revoke some")
        token = f"s0_{self._state.rng.getrandbits(256):064x}"
        row = TokenRow(digest_of(token), name, role, int((now.wall + seconds) * 1_000_000))
        self._tokens[row.digest] = row
        effects.write(PutToken(row.digest, row.name, row.role, row.expires_us))
        return token

    def is_reserved(self, name: str) -> bool:
        return name == LOCAL_NAME or self._state.is_reserved(name)

    @property
    def tokens(self) -> Iterable[TokenRow]:
        """All issued tokens, including expired ones."""
        return self._tokens.values()

    def revoke(self, is_meant: Callable[[TokenRow], object], effects: Effects) -> int:
        gone = [row.digest for row in self._tokens.values() if is_meant(row)]
        for found in gone:
            del self._tokens[found]
            effects.write(DropToken(found))
        return len(gone)

    def _by_token(self, token: str, now: Now) -> AdminAccount:
        digest = digest_of(token)
        if self._local is not None and hmac.compare_digest(digest, self._local):
            return AdminAccount(LOCAL_NAME, ADMIN, digest=digest)
        row = self._tokens.get(digest)
        if row is None or row.expires_us < now.wall * 1_000_000:
            raise Refusal(codes.WRONG_CREDENTIALS, "the token is unknown or has expired: log in again")
        return AdminAccount(row.name, row.role, row.expires_us / 1_000_000, digest)

    def _forget_expired(self, now: Now, effects: Effects) -> None:
        for row in [row for row in self._tokens.values() if row.expires_us < now.wall * 1_000_000]:
            del self._tokens[row.digest]
            effects.write(DropToken(row.digest))


def digest_of(token: str) -> str:
    """The stored form of a token. A token is 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(connection: Connection) -> str | Connection:
    """What a limit counts by: the key of a connection; without keys, the connection itself."""
    return connection.user_id or connection


def origin_of(request: messages.ManagementReq) -> str:
    """The client that the sender names as the origin; a value that is not plain text is omitted."""
    text = request.origin[:MAX_ORIGIN_CHARS]
    return text if text.isprintable() else ""
