"""Management: the table of commands of MANAGEMENTREQ, with role and function (PROTOCOL 4), and the commands about a
broker.

`config_commands`, `token_commands` and `check_commands` add their own rows. Invariants: every change is recorded with
user, command, and values before and after; the answer to a change is sent after the change is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.broker.admin.access import (
    OPERATOR,
    RANKS,
    TOO_MANY_WAIT,
    VIEWER,
    Access,
    AdminAccount,
    VerifyPassword,
    origin_of,
)
from scale0.broker.admin.views import Views
from scale0.broker.cluster.peers import Peers
from scale0.broker.cluster.rebalancing import Rebalancing
from scale0.broker.core.audit_limit import AuditLimit
from scale0.broker.core.connections import Connection, Connections
from scale0.broker.core.members import Members
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.requests import Requests
from scale0.broker.core.state import BrokerState
from scale0.config import BrokerConfig
from scale0.history.events.changes import ManagementCommanded
from scale0.history.events.sources import BrokerStateChanged
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import ConfigError, Refusal
from scale0.storage.rows import PutSetting, ReadDocument, ReadDocuments
from scale0.transport.core import messages
from scale0.transport.core.sockets import ACTIVE, DISABLED

INTERNAL_ERROR: Final = "internal error of the broker; its log has the traceback"
STATE_SETTING: Final = "state"
"""The setting that stores that a broker was disabled."""

FROM_MEMORY: Final = frozenset(
    {
        *("status", "list_peers", "list_clients", "list_services", "list_rates", "list_queues", "list_error_clients"),
        *("get_config", "whoami", "list_tokens"),
    }
)
"""Commands that neither read nor change the store: they are answered while the database is unavailable."""


class AdminCall(NamedTuple):
    connection: Connection
    request: messages.ManagementReq
    body: bytes
    admin: AdminAccount
    now: Now
    effects: Effects


class ReadOwnFile(msgspec.Struct, frozen=True, eq=False):
    """An Ask: reload the broker's configuration file. The answer is a BrokerConfig, or the errors."""

    call: Any


class ReadHistory(msgspec.Struct, frozen=True, eq=False):
    """An Ask for the store, with the command that waits for the answer."""

    ask: ReadDocuments | ReadDocument
    call: Any
    then: Callable[[Any, Any], Any]
    """Called with the call and the rows; returns an `Outcome`."""


class AdminResult(NamedTuple):
    result: Any
    before: Any = None
    after: Any = None
    changed: bool = False


Outcome = AdminResult | None
"""None: the answer comes later, from an Ask."""


class AdminCommands:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        peers: Peers,
        requests: Requests,
        views: Views,
        access: Access,
        rate_limits: RateLimits,
        rebalancing: Rebalancing,
        refusals: AuditLimit,
        version: str,
    ) -> None:
        self._state = state
        self._connections = connections
        self._members = members
        self._peers = peers
        self._requests = requests
        self._views = views
        self._access = access
        access.on_displaced = self._refuse_displaced
        self._rate_limits = rate_limits
        self._rebalancing = rebalancing
        self._version = version
        self._refusals = refusals
        self.table: dict[str, tuple[str, Callable[[AdminCall], Outcome]]] = {
            "status": (VIEWER, lambda c: AdminResult(self._views.status(c.now, self._version))),
            "list_peers": (VIEWER, lambda c: AdminResult(self._views.peers(c.now))),
            "list_clients": (
                VIEWER,
                lambda c: AdminResult(self._views.clients(c.now, c.request.limit, c.request.after)),
            ),
            "list_services": (VIEWER, lambda c: AdminResult(self._views.services(c.request.limit, c.request.after))),
            "list_rates": (VIEWER, lambda c: AdminResult(self._views.rates(c.request.limit, c.request.after))),
            "list_queues": (VIEWER, lambda c: AdminResult(self._views.queues(c.now, c.request.limit, c.request.after))),
            "list_error_clients": (
                VIEWER,
                lambda c: AdminResult(self._views.error_clients(c.now, c.request.limit, c.request.after)),
            ),
            "disable": (OPERATOR, self._disable),
            "enable": (OPERATOR, self._enable),
            "drain": (OPERATOR, self._drain),
            "reload_config": (OPERATOR, self._reload),
            "forgive": (OPERATOR, self._unban),
        }

    def start(self, last_wall: float, now: Now) -> None:
        """`last_wall`: the time that counted before the start; 0: none is known."""
        self._access.start(last_wall, now)

    def receive(
        self,
        connection: Connection,
        request: messages.ManagementReq,
        bodies: Sequence[bytes],
        now: Now,
        effects: Effects,
    ) -> None:
        """MANAGEMENTREQ: authenticate, authorise, execute."""
        body = bodies[0] if bodies else b""
        try:
            if request.command not in self.table:
                raise Refusal(codes.UNKNOWN_COMMAND, f"unknown command {request.command[:64]!r}")
            if not self._rate_limits.allows_request(connection.account, now):
                most = self._state.limits.max_requests_per_second
                raise Refusal(codes.TOO_MANY, f"more than {most} requests in a second: try again later")
            admin = self._access.admit(connection, request, body, now, effects)
        except Refusal as refusal:
            if refusal.code == codes.UNKNOWN_COMMAND:
                self._rate_limits.reject(connection, refusal.code, refusal.message, now, effects)
            elif refusal.code == codes.WRONG_CREDENTIALS and request.auth_token is not None:
                self._record_refusal("", connection, request, refusal.code, now, effects)
            self._answer(connection, request, refusal.code, refusal.message, None, effects)
            return
        if admin is not None:
            self._run(AdminCall(connection, request, body, admin, now, effects))

    def answer(self, ask: object, value: Any, now: Now, effects: Effects) -> None:
        match ask:
            case VerifyPassword():
                self._verified(ask, bool(value), now, effects)
            case ReadHistory():
                self.later(ask.call._replace(now=now, effects=effects), lambda call: ask.then(call, value))
            case ReadOwnFile():
                self.later(ask.call._replace(now=now, effects=effects), lambda call: self._take_file(call, value))

    def _run(self, call: AdminCall) -> None:
        role, act = self.table[call.request.command]
        if RANKS.get(call.admin.role, -1) < RANKS[role]:
            message = f"{call.request.command} needs the role {role}"
            self._record_refusal(
                call.admin.name, call.connection, call.request, codes.NOT_ALLOWED, call.now, call.effects
            )
            self._answer(call.connection, call.request, codes.NOT_ALLOWED, message, None, call.effects)
            return
        if self._state.outage is not None and call.request.command not in FROM_MEMORY:
            # Its answer would wait for the database.
            self._answer(call.connection, call.request, codes.NOT_SERVING, self._state.why_full, None, call.effects)
            return
        self.later(call, act)

    def later(self, call: AdminCall, act: Callable[[AdminCall], Outcome]) -> None:
        """Run a command, or continue it after an Ask, and answer it: after a defect, too."""
        try:
            self._act(call, act)
        except Exception:
            self._answer(call.connection, call.request, codes.FAILED, INTERNAL_ERROR, None, call.effects)
            raise

    def _act(self, call: AdminCall, act: Callable[[AdminCall], Outcome]) -> None:
        try:
            done = act(call)
        except Refusal as refusal:
            if refusal.code == codes.NOT_ALLOWED:
                self._record_refusal(
                    call.admin.name, call.connection, call.request, refusal.code, call.now, call.effects
                )
            self._answer(call.connection, call.request, refusal.code, refusal.message, None, call.effects)
        except ConfigError as error:
            body = {"reasons": error.reasons}
            self._answer(call.connection, call.request, codes.MALFORMED, str(error)[:1000], body, call.effects)
        else:
            if done is not None:
                self.finish(call, done)

    def finish(self, call: AdminCall, done: AdminResult) -> None:
        if isinstance(done.result, dict):
            call.connection.account.charge_rows(listed=len(done.result.get("items", ())))
        if done.changed:
            self.record(call, done)
        self._answer(call.connection, call.request, codes.OK, "done", done.result, call.effects, durable=done.changed)

    def answer_recorded(self, call: AdminCall, result: Any) -> None:
        """Answer a command that was recorded when it was accepted."""
        self._answer(call.connection, call.request, codes.OK, "done", result, call.effects, durable=True)

    def fail(self, call: AdminCall, code: int, message: str, done: AdminResult) -> None:
        """A command that was recorded when it was accepted failed: record the failure, and answer with the error."""
        self.record(call, done, code)
        self._answer(call.connection, call.request, code, message, None, call.effects, durable=True)

    def record(self, call: AdminCall, done: AdminResult, code: int = codes.OK) -> None:
        call.effects.record(
            ManagementCommanded(
                identity=call.admin.name,
                command=call.request.command,
                code=code,
                origin=asked_from(call.connection, call.request),
                before=done.before,
                after=done.after,
            )
        )

    def _record_refusal(
        self,
        user: str,
        connection: Connection,
        request: messages.ManagementReq,
        code: int,
        now: Now,
        effects: Effects,
    ) -> None:
        event = ManagementCommanded(
            # With a token, `auth_id` is a claim that nobody verifies.
            identity=user or (request.auth_id[:128] if request.auth_token is None else ""),
            command=request.command,
            code=code,
            origin=asked_from(connection, request),
        )
        self._refusals.record(user, event, now, effects)

    def _answer(
        self,
        connection: Connection,
        request: messages.ManagementReq,
        code: int,
        message: str,
        result: Any,
        effects: Effects,
        durable: bool = False,
    ) -> None:
        rep = messages.ManagementRep(id=request.id, code=code, message=message)
        body = msgspec.json.encode(result if result is not None else {})
        (effects.promise if durable else effects.send)(connection, ("MANAGEMENTREP", rep, body))

    def _verified(self, ask: VerifyPassword, right: bool, now: Now, effects: Effects) -> None:
        outcome = self._access.verified(ask, right, effects)
        if isinstance(outcome, AdminAccount):
            self._run(AdminCall(ask.connection, ask.request, ask.body, outcome, now, effects))
        else:
            self._state.count("passwords_wrong")
            # A delayed answer needs nothing else of the request, whose arguments may be large.
            asked = ask.request
            needed = messages.ManagementReq(asked.command, asked.id, asked.auth_id, origin=origin_of(asked))
            kept = msgspec.structs.replace(ask, password="", request=needed, body=b"")
            if self._access.is_undelayed(ask.request):
                self._refuse_password(kept, now, effects)
            else:
                self._state.timers.add((self._refuse_password, kept), now.mono + outcome)

    def _refuse_displaced(self, ask: VerifyPassword, effects: Effects) -> None:
        self._answer(ask.connection, ask.request, codes.TOO_MANY, TOO_MANY_WAIT, None, effects)

    def _refuse_password(self, ask: VerifyPassword, now: Now, effects: Effects) -> None:
        self._access.done(ask)
        self._record_refusal("", ask.connection, ask.request, codes.WRONG_CREDENTIALS, now, effects)
        self._answer(ask.connection, ask.request, codes.WRONG_CREDENTIALS, "wrong credentials", None, effects)

    def _set_state(self, call: AdminCall, state: str, draining: bool) -> AdminResult:
        before = self._state.shown
        self._state.state = state
        self._state.drain(draining)
        after = self._state.shown
        if before != after:
            call.effects.record(BrokerStateChanged(identity=self._state.identity, before=before, after=after))
            call.effects.write(PutSetting(STATE_SETTING, state.encode()))
            self._peers.announce_state(call.now, call.effects)
        return AdminResult({"state": self._state.duty, "draining": draining}, before, after, changed=before != after)

    def _disable(self, call: AdminCall) -> AdminResult:
        done = self._set_state(call, DISABLED, draining=False)
        self._requests.refuse_all(codes.NOT_SERVING, "this broker was disabled", call.now, call.effects)
        for member in list(self._members.by_name.values()):
            self._members.leave(member, call.now, call.effects)
        for connection in self._connections:
            connection.stale = True
        return done

    def _enable(self, call: AdminCall) -> AdminResult:
        slept = self._state.state == DISABLED
        done = self._set_state(call, ACTIVE, draining=False)
        if slept:
            # Reports of other brokers were ignored meanwhile: after our HELLO they send all of it again.
            self._peers.send_hello_to_all(call.now, call.effects)
        return done

    def _drain(self, call: AdminCall) -> AdminResult:
        if self._state.state != ACTIVE:
            raise Refusal(codes.NOT_SERVING, f"a broker in the state {self._state.state} cannot drain")
        done = self._set_state(call, ACTIVE, draining=True)
        self._rebalancing.send_away(call.now)
        return done

    def _reload(self, call: AdminCall) -> None:
        call.effects.ask(ReadOwnFile(call))

    def _take_file(self, call: AdminCall, value: BrokerConfig | ConfigError) -> AdminResult:
        if isinstance(value, ConfigError):
            raise value
        old = self._state.config
        self._state.config = value
        self._state.limits = value.limits()
        self._connections.apply(self._state.limits)
        self._peers.send_hello_to_all(call.now, call.effects)
        names = BrokerConfig.__struct_fields__
        paths = [name for name in names if getattr(old, name) != getattr(value, name)]
        return AdminResult({"changed": paths}, None, paths, changed=True)

    def _unban(self, call: AdminCall) -> AdminResult:
        named = [account for name, _, account in self._connections.banned(call.now) if name == call.request.client]
        if not named:
            raise Refusal(codes.NO_SUCH_SERVICE, "unknown error client: list_error_clients has their names")
        for account in named:
            account.clear()
        return AdminResult({"forgiven": len(named)}, after=call.request.client, changed=True)

    def must_have_room(self) -> None:
        """Raise a refusal while nothing can be stored."""
        if self._state.full:
            raise Refusal(codes.NOT_SERVING, self._state.why_full)


def asked_from(connection: Connection, request: messages.ManagementReq) -> str:
    """The origin of a command: our connection, and the client that it names."""
    origin = origin_of(request)
    return f"{connection.socket}/{connection.name}" + (f" for {origin}" if origin else "")
