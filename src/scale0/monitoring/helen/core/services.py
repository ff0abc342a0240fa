"""What Helen does for the network: the services `helen.…` and the task `helen.recheck`.

Lives here: `Services`: each service with the shape of its body. Never here: sockets, or Watch's own decisions.
Invariants: every request is answered exactly once; a body is foreign input, and a wrong one is answered with 400; a
request that came by this Helen's own name is never passed on, so that two Helens cannot send one in a circle.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.agent_bundles import HasBody, ReleaseBody
from scale0.monitoring.helen.core.agent_connection import FAIR_SECONDS, AgentConnection
from scale0.monitoring.helen.core.agents import Agent, is_check_name
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migrated_agents import AgentBundles
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.pending_requests import PendingRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.state import HelenState
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, Check, Reload
from scale0.monitoring.protocol.results import write_result

SERVICES: Final = ("check", "agents", "reload", "checks", "incidents", "status", "forget")
"""Each is offered as `helen.X`, and as `helen.<identity>.X`."""
REPLICA_SERVICES: Final = ("release", "has")
"""Offered as `helen.<identity>.X` alone: what one Helen asks another about an agent that moved."""
RECHECK: Final = "helen.recheck"
"""The task that runs a defined check again; its result counts as a scheduled one does."""

CHECK_SECONDS: Final = 30.0
"""How long a check may take if nobody says."""
MAX_CHECK_SECONDS: Final = 3_600.0
PAGE: Final = 100
"""Items of a list if nobody says."""
MAX_PAGE: Final = 1_000
MAX_TEXT_CHARS: Final = 255

T = TypeVar("T")

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]


class CheckBody(msgspec.Struct, frozen=True):
    """Of helen.check."""

    agent: Text
    check: Text
    args: msgspec.Raw = msgspec.Raw(b"{}")
    timeout: float | None = None
    recheck: bool = False
    """`check` names a definition: it runs with its own args, and counts as a scheduled result does."""


class AgentBody(msgspec.Struct, frozen=True):
    """Of helen.reload."""

    agent: Text


class ForgetBody(msgspec.Struct, frozen=True):
    """Of helen.forget: who asks must be able to read her folder."""

    agent: Text
    token: Text = ""


class StatusBody(msgspec.Struct, frozen=True):
    """Of helen.status: a Helen who asks says who she is."""

    sibling: Text = ""


class AgentsQuery(msgspec.Struct, frozen=True):
    """Of helen.agents."""

    limit: Limit = PAGE
    after: Text = ""
    all: bool = False
    """Also those who are away."""


_to_json: Final = msgspec.json.Encoder().encode

Serve = Callable[[Requester, bytes, float, bool, Now, Effects], None]


def service_names(identity: str) -> tuple[str, ...]:
    """All names under which a Helen offers her services."""
    own = tuple(f"helen.{identity}.{name}" for name in (*SERVICES, *REPLICA_SERVICES))
    return tuple(f"helen.{name}" for name in SERVICES) + own


class Services:
    """Answers requests."""

    __slots__ = ("_bundles", "_keepalive", "_migration", "_replicas", "_serve", "_state")

    def __init__(
        self, state: HelenState, replicas: Replicas, migration: Migration, bundles: AgentBundles, alive: Keepalive
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._migration = migration
        self._bundles = bundles
        self._keepalive = alive
        own = (self._check, self._agents, self._reload, self._checks, self._incidents, self._status, self._forget)
        between = (self._release, self._has)
        self._serve: dict[str, Serve] = dict(zip((*SERVICES, *REPLICA_SERVICES), (*own, *between), strict=True))

    def request(
        self, requester: Requester, service: str, timeout: float, body: bytes, now: Now, effects: Effects
    ) -> None:
        """One request; whatever is wrong with it is its answer."""
        prefix = f"helen.{self._state.settings.identity}."
        direct = service.startswith(prefix)
        name = service.removeprefix(prefix if direct else "helen.")
        serve = self._serve.get(name)
        try:
            if serve is None or (name in REPLICA_SERVICES and not direct):
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no service {service[:MAX_TEXT_CHARS]}")
            serve(requester, body, timeout, direct, now, effects)
        except Refusal as refusal:
            self._state.count("requests_refused")
            requester.refuse(refusal.code, refusal.message, effects)

    def task(self, requester: Requester, task_id: str, method: str, params: bytes, now: Now, effects: Effects) -> None:
        """One task."""
        try:
            if method != RECHECK:
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no method {method[:MAX_TEXT_CHARS]}")
            if params.lstrip()[:1] == b"[":
                (wanted,) = decode_body(params, tuple[CheckBody])
            else:
                wanted = decode_body(params, CheckBody)
            wanted = CheckBody(wanted.agent, wanted.check, timeout=wanted.timeout, recheck=True)
            self._run(requester, wanted, task_id, MAX_CHECK_SECONDS, False, now, effects)
        except Refusal as refusal:
            self._state.count("requests_refused")
            requester.refuse(refusal.code, refusal.message, effects)

    def _check(
        self, requester: Requester, body: bytes, timeout: float, direct: bool, now: Now, effects: Effects
    ) -> None:
        ref = requester.routing_id.decode("utf-8", "replace")
        self._run(requester, decode_body(body, CheckBody), ref, timeout, direct, now, effects)

    def _run(
        self,
        requester: Requester,
        wanted: CheckBody,
        ref: str,
        most_seconds: float,
        direct: bool,
        now: Now,
        effects: Effects,
    ) -> None:
        """Have a check run on an agent, here or elsewhere."""
        state = self._state
        if not is_check_name(wanted.check):
            raise Refusal(codes.MALFORMED, "a check's name is printable and has no spaces")
        seconds = CHECK_SECONDS if wanted.timeout is None else wanted.timeout
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_CHECK_SECONDS):
            raise Refusal(codes.MALFORMED, f"timeout is more than 0 and at most {MAX_CHECK_SECONDS:.0f} seconds")
        deadline = now.mono + min(seconds, most_seconds)
        if state.requests.is_full:
            raise Refusal(codes.TOO_MANY, "too many checks are being waited for")
        pending = PendingRequest(requester, wanted.check, ref, wanted.recheck)
        agent = state.agents.get(wanted.agent)
        if agent is not None and wanted.recheck:
            finding = self._keepalive.check_now(agent, wanted.check, ref, now, effects)
            if finding is not None:
                requester.promise(write_result(finding), effects)
                return
        connection = None if agent is None else agent.connection
        if agent is None or connection is None:
            if direct or not self._replicas.names:
                raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
            self._replicas.ask(pending, "check", _to_json(wanted), deadline, now, effects)
            return
        self._send(connection, agent, pending, wanted, deadline, now, effects)

    def _send(
        self,
        connection: AgentConnection,
        agent: Agent,
        pending: PendingRequest,
        wanted: CheckBody,
        deadline: float,
        now: Now,
        effects: Effects,
    ) -> None:
        name, args = wanted.check, bytes(wanted.args)
        if wanted.recheck:
            definition = self._state.evaluation.selects(agent.identity, agent.labels, wanted.check)
            if definition is None or definition.alive:
                raise Refusal(codes.NO_SUCH_SERVICE, f"no check {wanted.check} is defined for agent {agent.identity}")
            name, args = definition.scheduled.check, definition.args_json()
        if not args.lstrip().startswith(b"{") or len(args) > MAX_BLOB_BYTES:
            raise Refusal(codes.MALFORMED, f"args is an object of at most {MAX_BLOB_BYTES} bytes")
        if not connection.has_room(len(args)):
            raise Refusal(codes.TOO_MANY, f"agent {agent.identity} has too many checks to answer")
        number = connection.issue()
        if number is None:
            self._state.refuse(connection, "this connection has used up its message ids", now, effects)
            raise Refusal(codes.NOT_SERVING, f"agent {agent.identity} must connect again")
        pending.connection, pending.size, pending.enough_time = (
            connection,
            len(args),
            deadline - now.mono >= FAIR_SECONDS,
        )
        connection.expect(number, pending)
        self._state.requests.add(pending, deadline)
        self._state.count("checks_asked")
        connection.send(Check(name, number, args), effects)

    def _reload(
        self, requester: Requester, body: bytes, timeout: float, direct: bool, now: Now, effects: Effects
    ) -> None:
        wanted = decode_body(body, AgentBody)
        agent = self._state.agents.get(wanted.agent)
        connection = None if agent is None else agent.connection
        if connection is not None:
            self._state.count("reloads_sent")
            connection.send(Reload(), effects)
            requester.reply(_to_json({"reloaded": wanted.agent}), effects)
        elif direct or not self._replicas.names or self._state.requests.is_full:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
        else:
            pending = PendingRequest(requester, "", "", False)
            self._replicas.ask(pending, "reload", body, now.mono + min(timeout, CHECK_SECONDS), now, effects)

    def _agents(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, effects: Effects
    ) -> None:
        query = decode_body(body, AgentsQuery)
        requester.reply(_to_json(self._state.agents.page(query.all, query.after, query.limit, now)), effects)

    def _checks(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, effects: Effects
    ) -> None:
        # A promise: it may speak of states that this turn has only decided.
        requester.promise(_to_json(self._state.evaluation.checks(decode_body(body, dict[str, Any]), now)), effects)

    def _incidents(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, effects: Effects
    ) -> None:
        def on_page(page: dict[str, Any] | Refusal, _now: Now | None, out: Effects) -> None:
            if isinstance(page, Refusal):
                requester.refuse(page.code, page.message, out)
            else:
                requester.promise(_to_json(page), out)

        self._state.evaluation.find_incidents(decode_body(body, dict[str, Any]), on_page, effects)

    def _release(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, effects: Effects
    ) -> None:
        self._migration.release(requester, decode_body(body, ReleaseBody), effects)

    def _has(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, effects: Effects
    ) -> None:
        self._migration.has(requester, decode_body(body, HasBody), effects)

    def _status(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, effects: Effects
    ) -> None:
        if body and (sibling := decode_body(body, StatusBody).sibling):
            self._replicas.introduce(sibling, effects)
        requester.reply(_to_json(status(self._state, self._replicas)), effects)

    def _forget(
        self, requester: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, effects: Effects
    ) -> None:
        """An agent that is gone for good: its record, its spools and the states of its checks."""
        wanted = decode_body(body, ForgetBody)
        token = self._state.settings.token
        if not token or not hmac.compare_digest(token.encode(), wanted.token.encode()):
            raise Refusal(codes.WRONG_CREDENTIALS, "that is not the token in this Helen's folder")
        agent = self._state.agents.get(wanted.agent)
        if (agent is not None and agent.connection is not None) or self._migration.line_of(wanted.agent) is not None:
            raise Refusal(codes.IN_USE, f"agent {wanted.agent} is connected: revoke its certificate first")
        stored = self._bundles.forget(wanted.agent, effects)
        if agent is not None:
            self._state.agents.forget(agent, effects)
            self._state.spools.forget(wanted.agent)
            self._state.evaluation.forget(wanted.agent, now, effects)
        elif not stored:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not known")
        requester.promise(_to_json({"forgotten": wanted.agent}), effects)


def status(state: HelenState, replicas: Replicas) -> dict[str, Any]:
    """How this Helen is: for people, and for other Helens that look for room."""
    return {
        "identity": state.settings.identity,
        "advertise": state.settings.advertise,
        "agents": state.agents.connected,
        "max_agents": state.settings.max_agents,
        "known": len(state.agents.by_identity),
        "connections": len(state.connections),
        "open_checks": state.requests.count,
        "siblings": replicas.names,
        "counts": dict(state.counts),
    }


def decode_body(body: bytes, schema: type[T]) -> T:
    """A body as a value of that shape; an empty one is an empty object. Refusal 400: it is something else."""
    try:
        return msgspec.json.decode(body or b"{}", type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"the body is not what it should be: {error}") from None
