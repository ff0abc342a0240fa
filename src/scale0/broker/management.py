"""Management: every command of MANAGEMENTREQ (PROTOCOL 4).

Lives here: an explicit table of command, role and function, and what each does. Never here: HTTP, or a way around the
table. Invariants: whatever changes anything is recorded with who, what, before and after; an answer that speaks of a
change leaves after the change is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.base import codes
from scale0.base.errors import ConfigError, Refusal
from scale0.base.now import Now
from scale0.base.step import Step
from scale0.broker import options
from scale0.broker.access import ADMIN, OPERATOR, RANKS, VIEWER, Access, Admin, VerifyPassword, origin_of
from scale0.broker.blame import Blame
from scale0.broker.connection import Connection, Connections
from scale0.broker.documents import Documents
from scale0.broker.members import Members
from scale0.broker.moves import Moves
from scale0.broker.peers import Peers
from scale0.broker.requests import Requests
from scale0.broker.state import ACTIVE, DISABLED, BrokerState
from scale0.broker.views import Views
from scale0.config import BrokerConfig, NetworkDocument, changed_paths, check_document, parse, patch
from scale0.events.changes import ManagementCommanded
from scale0.events.sources import BrokerStateChanged
from scale0.store.writes import Document, PutSetting, ReadDocument, ReadDocuments

STATE_SETTING: Final = "state"
"""Where the store remembers that a broker was disabled."""
MAX_VERSION_DIGITS: Final = 18
"""Of a version in text: what a store's integer holds."""


class Call(NamedTuple):
    """One command being done."""

    connection: Connection
    said: options.ManagementReq
    body: bytes
    admin: Admin
    now: Now
    step: Step


class ReadOwnFile(msgspec.Struct, frozen=True, eq=False):
    """An Ask: read the broker's own file again. The answer is a BrokerConfig, or the reasons why not."""

    call: Any


class ReadHistory(msgspec.Struct, frozen=True, eq=False):
    """An Ask for the store, with the command that waits for its answer."""

    ask: ReadDocuments | ReadDocument
    call: Any


class Done(NamedTuple):
    """What a command gives back."""

    result: Any
    before: Any = None
    after: Any = None
    changed: bool = False


Outcome = Done | None
"""None: the answer comes later, from an Ask."""


class Management:
    """The commands, one method each."""

    __slots__ = (
        "_access",
        "_blame",
        "_connections",
        "_documents",
        "_members",
        "_moves",
        "_peers",
        "_requests",
        "_state",
        "_version",
        "_views",
        "table",
    )

    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        peers: Peers,
        requests: Requests,
        documents: Documents,
        views: Views,
        access: Access,
        blame: Blame,
        moves: Moves,
        version: str,
    ) -> None:
        self._state = state
        self._connections = connections
        self._members = members
        self._peers = peers
        self._requests = requests
        self._documents = documents
        self._views = views
        self._access = access
        self._blame = blame
        self._moves = moves
        self._version = version
        self.table: dict[str, tuple[str, Callable[[Call], Outcome]]] = {
            "status": (VIEWER, lambda c: Done(self._views.status(c.now, self._version))),
            "list_peers": (VIEWER, lambda c: Done(self._views.peers(c.now))),
            "list_clients": (VIEWER, lambda c: Done(self._views.clients(c.now, c.said.limit, c.said.after))),
            "list_services": (VIEWER, lambda c: Done(self._views.services(c.said.limit, c.said.after))),
            "list_rates": (VIEWER, lambda c: Done(self._views.rates(c.said.limit, c.said.after))),
            "list_queues": (VIEWER, lambda c: Done(self._views.queues(c.now, c.said.limit, c.said.after))),
            "list_error_clients": (
                VIEWER,
                lambda c: Done(self._views.error_clients(c.now, c.said.limit, c.said.after)),
            ),
            "get_config": (VIEWER, self._get_config),
            "config_history": (VIEWER, self._history),
            "disable": (OPERATOR, self._disable),
            "enable": (OPERATOR, self._enable),
            "drain": (OPERATOR, self._drain),
            "reload_config": (OPERATOR, self._reload),
            "forgive": (OPERATOR, self._forgive),
            "set_config": (ADMIN, self._set_config),
            "patch_config": (OPERATOR, self._patch_config),
            "rollback_config": (ADMIN, self._rollback),
        }

    def receive(
        self, connection: Connection, said: options.ManagementReq, bodies: Sequence[bytes], now: Now, step: Step
    ) -> None:
        """MANAGEMENTREQ: who is it, may they, do it."""
        body = bodies[0] if bodies else b""
        try:
            if said.command not in self.table:
                raise Refusal(codes.UNKNOWN_COMMAND, f"unknown command {said.command[:64]!r}")
            admin = self._access.admit(connection, said, body, now, step)
        except Refusal as refusal:
            if refusal.code == codes.UNKNOWN_COMMAND:
                self._blame.blame(connection, refusal.code, refusal.message, now, step)
            self._answer(connection, said, refusal.code, refusal.message, None, step)
            return
        if admin is not None:
            self._run(Call(connection, said, body, admin, now, step))

    def answer(self, ask: object, value: Any, now: Now, step: Step) -> None:
        """What an Ask of ours found."""
        match ask:
            case VerifyPassword():
                self._verified(ask, bool(value), now, step)
            case ReadHistory(ask=ReadDocuments(limit=limit)):
                call = ask.call._replace(now=now, step=step)
                last = str(value[-1].version) if len(value) >= limit else None
                self.finish(call, Done({"items": [document_row(row) for row in value], "next": last}))
            case ReadHistory(call=Call(said=options.ManagementReq(command="get_config"))):
                self.later(ask.call._replace(now=now, step=step), lambda call: shown_document(call, value))
            case ReadHistory():
                self.later(ask.call._replace(now=now, step=step), lambda call: self._roll_back_to(call, value))
            case ReadOwnFile():
                self.later(ask.call._replace(now=now, step=step), lambda call: self._take_file(call, value))

    def _run(self, call: Call) -> None:
        role, act = self.table[call.said.command]
        if RANKS.get(call.admin.role, -1) < RANKS[role]:
            message = f"{call.said.command} needs the role {role}"
            self._answer(call.connection, call.said, codes.NOT_ALLOWED, message, None, call.step)
            return
        self.later(call, act)

    def later(self, call: Call, act: Callable[[Call], Outcome]) -> None:
        """Do it, and answer what came of it."""
        try:
            done = act(call)
        except Refusal as refusal:
            self._answer(call.connection, call.said, refusal.code, refusal.message, None, call.step)
        except ConfigError as error:
            body = {"reasons": error.reasons}
            self._answer(call.connection, call.said, codes.MALFORMED, str(error)[:1000], body, call.step)
        else:
            if done is not None:
                self.finish(call, done)

    def finish(self, call: Call, done: Done) -> None:
        """Answer; a change is recorded first."""
        if done.changed:
            call.step.record(
                ManagementCommanded(
                    identity=call.admin.name,
                    command=call.said.command,
                    code=codes.OK,
                    origin=asked_from(call.connection, call.said),
                    before=done.before,
                    after=done.after,
                )
            )
        self._answer(call.connection, call.said, codes.OK, "done", done.result, call.step, durable=done.changed)

    def _answer(
        self,
        connection: Connection,
        said: options.ManagementReq,
        code: int,
        message: str,
        result: Any,
        step: Step,
        durable: bool = False,
    ) -> None:
        rep = options.ManagementRep(id=said.id, code=code, message=message)
        body = msgspec.json.encode(result if result is not None else {})
        (step.promise if durable else step.send)(connection, ("MANAGEMENTREP", rep, body))

    def _verified(self, ask: VerifyPassword, right: bool, now: Now, step: Step) -> None:
        outcome = self._access.verified(ask, right)
        if isinstance(outcome, Admin):
            self._run(Call(ask.connection, ask.said, ask.body, outcome, now, step))
        else:
            self._state.count("passwords_wrong")
            self._state.timers.add((self._say_no, ask), now.mono + outcome)

    def _say_no(self, ask: VerifyPassword, now: Now, step: Step) -> None:
        self._access.done(ask)
        step.record(
            ManagementCommanded(
                identity=ask.said.auth_id[:128],
                command=ask.said.command,
                code=codes.WRONG_CREDENTIALS,
                origin=asked_from(ask.connection, ask.said),
            )
        )
        self._answer(ask.connection, ask.said, codes.WRONG_CREDENTIALS, "wrong credentials", None, step)

    def _set_state(self, call: Call, state: str, draining: bool) -> Done:
        before = self._state.shown
        self._state.state = state
        self._state.drain(draining)
        after = self._state.shown
        if before != after:
            call.step.record(BrokerStateChanged(identity=self._state.identity, before=before, after=after))
            call.step.write(PutSetting(STATE_SETTING, state.encode()))
            self._peers.tell_state(call.now, call.step)
        return Done({"state": self._state.duty, "draining": draining}, before, after, changed=before != after)

    def _disable(self, call: Call) -> Done:
        done = self._set_state(call, DISABLED, draining=False)
        self._requests.refuse_all(codes.NOT_SERVING, "this broker was disabled", call.now, call.step)
        for member in list(self._members.by_name.values()):
            self._members.leave(member, call.now, call.step)
        for connection in self._connections:
            connection.stale = True
        return done

    def _enable(self, call: Call) -> Done:
        slept = self._state.state == DISABLED
        done = self._set_state(call, ACTIVE, draining=False)
        if slept:
            # What others told meanwhile was not heard: who says HELLO is told all of it.
            self._peers.greet_all(call.now, call.step)
        return done

    def _drain(self, call: Call) -> Done:
        if self._state.state != ACTIVE:
            raise Refusal(codes.NOT_SERVING, f"a broker that is {self._state.state} has nothing to drain")
        done = self._set_state(call, ACTIVE, draining=True)
        self._moves.send_away(call.now)
        return done

    def _reload(self, call: Call) -> None:
        call.step.ask(ReadOwnFile(call))

    def _take_file(self, call: Call, value: BrokerConfig | ConfigError) -> Done:
        if isinstance(value, ConfigError):
            raise value
        old = self._state.config
        self._state.config = value
        self._state.limits = value.limits()
        self._connections.apply(self._state.limits)
        self._peers.greet_all(call.now, call.step)
        names = BrokerConfig.__struct_fields__
        paths = [name for name in names if getattr(old, name) != getattr(value, name)]
        return Done({"changed": paths}, None, paths, changed=True)

    def _forgive(self, call: Call) -> Done:
        named = [account for name, _, account in self._connections.banned(call.now) if name == call.said.client]
        if not named:
            raise Refusal(codes.NO_SUCH_SERVICE, "no such error client: see list_error_clients")
        for account in named:
            account.clear()
        return Done({"forgiven": len(named)}, after=call.said.client, changed=True)

    def _get_config(self, call: Call) -> Done | None:
        documents = self._documents
        if call.said.version is not None and call.said.version != documents.version:
            call.step.ask(ReadHistory(ReadDocument(version=call.said.version), call))
            return None
        return Done({"version": documents.version, "hash": documents.hash, "config": msgspec.Raw(documents.body)})

    def _set_config(self, call: Call) -> Done:
        given = call.body or as_json(call.said.config)
        document = parse(given, "json", NetworkDocument)
        self._must_be_based_on(call.said.base)
        return self._make_current(call, document)

    def _must_be_based_on(self, base: int | None) -> None:
        if base != self._documents.version:
            message = f"it was made from version {base}, but {self._documents.version} is current"
            raise Refusal(codes.IN_USE, message)

    def _patch_config(self, call: Call) -> Done:
        if call.said.base is not None:
            self._must_be_based_on(call.said.base)
        return self._make_current(call, patch(self._documents.document, call.said.set, call.said.remove))

    def _make_current(self, call: Call, wanted: NetworkDocument) -> Done:
        self.must_have_room()
        if not self._state.config.config_service and self._state.config.peers:
            raise Refusal(codes.NOT_ALLOWED, "this broker has no config_service: change it on one that has")
        old = self._documents.document
        document = msgspec.structs.replace(wanted, version=old.version + 1, parent=self._documents.hash)
        reasons = check_document(document)
        if reasons:
            raise ConfigError(reasons)
        changes = changed_paths(old, document)
        self._documents.change(document, call.admin.name, self._listeners(), call.now, call.step)
        result = {"version": self._documents.version, "hash": self._documents.hash}
        paths = [path for path, _before, _after in changes if path not in ("version", "parent")]
        return Done(result, old.version, {"version": document.version, "paths": paths[:100]}, changed=True)

    def must_have_room(self) -> None:
        """Raises where nothing can be stored."""
        if self._state.full:
            raise Refusal(
                codes.NOT_SERVING, "nothing can be stored now: the disk is almost full, or the database is away"
            )

    def _listeners(self) -> Iterable[Any]:
        return list(self._members.by_name.values())

    def _history(self, call: Call) -> None:
        limit = max(1, min(call.said.limit, 1_000))
        after = call.said.after or ""
        before = int(after) if after.isascii() and after.isdigit() and len(after) <= MAX_VERSION_DIGITS else None
        call.step.ask(ReadHistory(ReadDocuments(limit=limit, before_version=before), call))

    def _rollback(self, call: Call) -> None:
        if call.said.version is None:
            raise Refusal(codes.MALFORMED, "say which version to go back to")
        if call.said.base is not None:
            self._must_be_based_on(call.said.base)
        call.step.ask(ReadHistory(ReadDocument(version=call.said.version), call))

    def _roll_back_to(self, call: Call, value: Document | None) -> Done:
        if value is None:
            raise Refusal(codes.NO_SUCH_SERVICE, f"version {call.said.version} is not in the history")
        return self._make_current(call, parse(value.body, "json", NetworkDocument))


def asked_from(connection: Connection, said: options.ManagementReq) -> str:
    """Where a command came from: our connection, and for whom that says that it asks."""
    origin = origin_of(said)
    return f"{connection.door}/{connection.name}" + (f" for {origin}" if origin else "")


def as_json(value: Any) -> bytes:
    """A document that came in MessagePack as JSON; some of what MessagePack can say, JSON cannot."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"config cannot be said in JSON: {error}") from error


def shown_document(call: Call, value: Document | None) -> Done:
    """A document of the history, whole."""
    if value is None:
        raise Refusal(codes.NO_SUCH_SERVICE, f"version {call.said.version} is not in the history")
    return Done({"version": value.version, "hash": value.hash, "config": msgspec.Raw(value.body)})


def document_row(row: Document) -> dict[str, Any]:
    """A stored document as management lists it."""
    return {
        "version": row.version,
        "hash": row.hash,
        "parent": row.parent,
        "time": row.time_us / 1_000_000,
        "author": row.author,
        "current": row.current,
    }
