"""Authentication and roles of administrators: passwords, tokens and their limits.

Invariants: a password is hashed off the loop, one at a time for each connection and name, and only after the limits are
checked; a limit never depends on what the sender writes besides the name; only the digests of tokens are stored; each
wrong password increases the delay of the answer; a one-time link permits nothing but its exchange for a session, once;
no session outlives the token that made it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.confirmed_clock import ConfirmedClock
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import MAX_IDENTITY_CHARS
from scale0.kernel.sender_queue import SenderQueue
from scale0.storage.rows import DropToken, PutToken, TokenRow
from scale0.transport.core import messages

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
RANKS: Final = {VIEWER: 0, OPERATOR: 1, ADMIN: 2}

SESSION_SECONDS: Final = 3_600.0
LINK_SESSION_SECONDS: Final = 12 * 3_600.0
"""How long the session of a one-time link lasts."""
EXCHANGE_LINK: Final = "exchange_link"
"""The only command that accepts a one-time link."""
LINK_ROLE: Final = "once:"
"""Before the stored role of a one-time link: a version that does not know links permits such a role nothing."""
OLD_LINK_NAME: Final = re.compile(r"once-[0-9a-f]{8}", re.ASCII)
"""The names by which earlier versions recognised one-time links, and the tokens derived from them."""
MAX_TOKEN_SECONDS: Final = 366 * 86_400.0
MAX_VERIFYING: Final = 8
"""Passwords being hashed at once, for all connections: hashing is slow on purpose."""
MAX_WAITING: Final = 64
"""Passwords that wait for their turn; those of a key and a name that were right before may be as many again."""
TOO_MANY_WAIT: Final = "too many passwords wait to be verified: try again later"
MAX_OF_KEY: Final = 8
"""Passwords of one key, or of one connection without a key, that are hashed or wait for their turn."""
MAX_OF_CONNECTION: Final = 32
"""Names for which one connection may wait for a delayed answer."""
MAX_PROVEN: Final = 1_000
FIRST_DELAY_SECONDS: Final = 0.25
"""The delay after the first wrong password; it doubles each time."""
MAX_DELAY_SECONDS: Final = 30.0
MAX_TOKENS: Final = 10_000
SESSIONS_AT_ONCE: Final = 100
"""Sessions that are ended together when there is no room: to find them takes a look at every token."""
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
    once: bool = False
    """True for a one-time link."""


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
        self._tokens = {token.digest: with_kind(token) for token in tokens}
        self._local = local_digest
        self._unanswered: dict[Connection, set[str]] = {}
        """By connection: the names whose password has no answer yet, delayed answers included."""
        self._hashing = 0
        """Passwords being hashed: delayed answers do not count, so that they cannot lock out others."""
        self._waiting: SenderQueue[VerifyPassword] = SenderQueue()
        """Passwords that are hashed next: keys in turn."""
        self.on_displaced: Callable[[VerifyPassword, Effects], None] = lambda *_: None
        """Called for a password that loses its place to one of another key or name."""
        self._of_key: Counter[str | Connection] = Counter()
        """By key: passwords that are hashed or wait."""
        self._proven: dict[tuple[str, str], None] = {}
        """Keys and names whose password was right: they come first, so that a flood of others does not stop them."""
        self._failures: dict[str, int] = {}
        self._clock: ConfirmedClock | None = None

    def start(self, last_wall: float, now: Now) -> None:
        """`last_wall`: the time that counted before the start; 0: none is known."""
        self._clock = ConfirmedClock(now, last_wall)

    def admit(
        self, connection: Connection, request: messages.ManagementReq, body: bytes, now: Now, effects: Effects
    ) -> AdminAccount | None:
        """Authenticate the sender; None when a password must be verified first. Raises `Refusal`."""
        if request.auth_token is not None:
            return self._by_token(request.auth_token, request.command, now)
        if request.auth_password is None or len(request.auth_id) > MAX_IDENTITY_CHARS:
            raise Refusal(
                codes.WRONG_CREDENTIALS, "credentials are missing: give auth_id and auth_password, or auth_token"
            )
        names = self._unanswered.get(connection, set())
        key, is_proven = key_of(connection), (connection.user_id, request.auth_id) in self._proven
        if request.auth_id in names or len(names) >= MAX_OF_CONNECTION or self._of_key[key] >= MAX_OF_KEY:
            raise Refusal(codes.TOO_MANY, "another password of this client is being verified: try again later")
        if len(self._waiting) >= MAX_WAITING * (1 + is_proven):
            self._make_room(key, request.auth_id, effects)
        self._unanswered.setdefault(connection, names).add(request.auth_id)
        self._of_key[key] += 1
        hashes = [admin.password_hash for admin in self._state.config.admins if admin.auth_id == request.auth_id]
        ask = VerifyPassword(request.auth_password, hashes[0] if hashes else DECOY_HASH, connection, request, body)
        self._waiting.add(key, ask, rank=int(is_proven))
        self._hash_next(effects)
        return None

    def _make_room(self, key: str | Connection, name: str, effects: Effects) -> None:
        """Displace the last password of the key, or else of the name, that has the most; not for one that would have as
        many. Raises `Refusal`."""
        for mine, of in ((key, lambda ask: key_of(ask.connection)), (name, lambda ask: ask.request.auth_id)):
            counts = Counter(map(of, self._waiting))
            most, count = counts.most_common(1)[0]
            if count > counts[mine] + 1:
                ask = [ask for ask in self._waiting if of(ask) == most][-1]
                self._waiting.remove(key_of(ask.connection), ask)
                self._release(ask)
                self.done(ask)
                self.on_displaced(ask, effects)
                return
        raise Refusal(codes.TOO_MANY, TOO_MANY_WAIT)

    def _release(self, ask: VerifyPassword) -> None:
        """It is neither hashed nor waits any more."""
        key = key_of(ask.connection)
        self._of_key[key] -= 1
        if not self._of_key[key]:
            del self._of_key[key]

    def _hash_next(self, effects: Effects) -> None:
        while self._waiting and self._hashing < MAX_VERIFYING:
            self._hashing += 1
            effects.ask(self._waiting.take())

    def verified(self, ask: VerifyPassword, right: bool, effects: Effects) -> AdminAccount | float:
        """The result of a verified password: an administrator, or the seconds to delay the refusal."""
        self._hashing -= 1
        name = ask.request.auth_id
        self._release(ask)
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

    def is_undelayed(self, request: messages.ManagementReq) -> bool:
        """True for a program that can read the token of this machine: it need not guess passwords."""
        token = request.local_token
        return self._local is not None and token is not None and hmac.compare_digest(digest_of(token), self._local)

    def done(self, ask: VerifyPassword) -> None:
        """The password was answered: the connection may try the next one."""
        names = self._unanswered[ask.connection]
        names.discard(ask.request.auth_id)
        if not names:
            del self._unanswered[ask.connection]

    def issue(
        self, name: str, role: str, seconds: float, now: Now, effects: Effects, once: bool = False, parent: str = ""
    ) -> str:
        """Issue a new token, or with `once` a one-time link; only its digest is stored. It ends with the token
        whose digest is `parent`."""
        if len(self._tokens) >= MAX_TOKENS:
            self._forget_expired(now, effects)
        if len(self._tokens) >= MAX_TOKENS:
            self._end_oldest_sessions(effects)
        if len(self._tokens) >= MAX_TOKENS:
            raise Refusal(codes.TOO_MANY, "the limit of stored tokens is reached: revoke some")
        token = f"s0_{self._state.rng.getrandbits(256):064x}"
        expires_us = int((now.wall + seconds) * 1_000_000)
        self._put(TokenRow(digest_of(token), name, LINK_ROLE * once + role, expires_us, parent), effects)
        return token

    def _end_oldest_sessions(self, effects: Effects) -> None:
        """End the oldest sessions of the name that has the most by tokens, so that one name keeps out no other."""
        sessions: dict[str, list[TokenRow]] = {}
        for row in self._tokens.values():
            if row.parent:
                sessions.setdefault(row.name, []).append(row)
        most = max(sessions.values(), key=len, default=[])
        oldest = sorted(most[:-1], key=lambda row: row.expires_us)[:SESSIONS_AT_ONCE]
        ended = {row.digest for row in oldest}
        self.revoke(lambda row: row.digest in ended, effects)

    def _put(self, row: TokenRow, effects: Effects) -> None:
        self._tokens[row.digest] = row
        effects.write(PutToken(*msgspec.structs.astuple(row)))

    def is_reserved(self, name: str) -> bool:
        return name == LOCAL_NAME or self._state.is_reserved(name)

    def valid_tokens(self, now: Now) -> list[TokenRow]:
        time_us = self.time_us(now)
        return [row for row in self._tokens.values() if self._is_valid(row, time_us)]

    def _is_valid(self, row: TokenRow, time_us: float) -> bool:
        return row.expires_us >= time_us and (row.parent in ("", self._local) or row.parent in self._tokens)

    def revoke(self, is_meant: Callable[[TokenRow], object], effects: Effects) -> int:
        """Revoke tokens, with all sessions that were made with them; their number."""
        gone = [row.digest for row in self._tokens.values() if is_meant(row)]
        if gone:
            made = self._made_with()
            known = set(gone)
            for digest in gone:  # which grows
                gone += [each for each in made.get(digest, ()) if each not in known]
                known.update(made.get(digest, ()))
        for found in gone:
            del self._tokens[found]
            effects.write(DropToken(found))
        return len(gone)

    def end(self, digest: str, effects: Effects) -> int:
        """Revoke one token alone: sessions that were made with it end with the token that made it."""
        row = self._tokens.pop(digest, None)
        if row is None:
            return 0
        effects.write(DropToken(digest))
        for child in self._made_with().get(digest, ()):
            self._put(msgspec.structs.replace(self._tokens[child], parent=row.parent), effects)
        return 1

    def _made_with(self) -> dict[str, list[str]]:
        """By token: the sessions that were made with it."""
        made: dict[str, list[str]] = {}
        for row in self._tokens.values():
            if row.parent:
                made.setdefault(row.parent, []).append(row.digest)
        return made

    def _by_token(self, token: str, command: str, now: Now) -> AdminAccount:
        digest = digest_of(token)
        if self._local is not None and hmac.compare_digest(digest, self._local):
            return AdminAccount(LOCAL_NAME, ADMIN, digest=digest)
        row = self._tokens.get(digest)
        if row is None or not self._is_valid(row, self.time_us(now)):
            raise Refusal(codes.WRONG_CREDENTIALS, "the token is unknown or has expired: log in again")
        if is_link(row) != (command == EXCHANGE_LINK):
            raise Refusal(
                codes.WRONG_CREDENTIALS,
                f"the token is a one-time link: exchange it for a session with {EXCHANGE_LINK}"
                if is_link(row)
                else "the token is not a one-time link: issue one with once=true",
            )
        return AdminAccount(row.name, role_of(row), row.expires_us / 1_000_000, digest, is_link(row))

    def time_us(self, now: Now) -> int:
        """The time by which tokens expire: a jump of the wall clock revokes none."""
        self._clock = self._clock or ConfirmedClock(now)
        return int(self._clock.read(now, self._state.clock_suspect) * 1_000_000)

    def _forget_expired(self, now: Now, effects: Effects) -> None:
        time_us = self.time_us(now)
        for row in [row for row in self._tokens.values() if not self._is_valid(row, time_us)]:
            del self._tokens[row.digest]
            effects.write(DropToken(row.digest))


def is_link(row: TokenRow) -> bool:
    return row.role.startswith(LINK_ROLE)


def role_of(row: TokenRow) -> str:
    """The role of a token, or of the session of a link."""
    return row.role.removeprefix(LINK_ROLE)


def with_kind(row: TokenRow) -> TokenRow:
    """A stored token; one that an older version recognised as a link by its name is a link."""
    if is_link(row) or OLD_LINK_NAME.fullmatch(row.name) is None:
        return row
    return msgspec.structs.replace(row, role=LINK_ROLE + row.role)


def digest_of(token: str) -> str:
    """The stored form of a token. A token is 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(connection: Connection) -> str | Connection:
    """What a limit counts by: the key of a connection; without keys, the connection itself."""
    return connection.sender or connection


def origin_of(request: messages.ManagementReq) -> str:
    """The client that the sender names as the origin; a value that is not plain text is omitted."""
    text = request.origin[:MAX_ORIGIN_CHARS]
    return text if text.isprintable() else ""
