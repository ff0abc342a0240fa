"""Helen's services for the network (`helen.…`) and the task `helen.recheck`.

Each request is answered exactly once; an invalid body is answered with 400. A request by this Helen's own name is never
forwarded, so that no request goes in a circle.
"""

from __future__ import annotations

import hmac
import math
from typing import Annotated, Any, Final, TypeVar

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, has_slow_numbers
from scale0.monitoring.helen.core.agent_bundles import HasBody, ReleaseBody
from scale0.monitoring.helen.core.agent_connection import FAIR_SECONDS
from scale0.monitoring.helen.core.agents import Agent, is_check_name
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migrated_agents import AgentBundles
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.pending_requests import PendingRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.socket_events import NetworkRequest, NetworkTask
from scale0.monitoring.helen.core.state import HelenState
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, Check, Reload
from scale0.monitoring.protocol.results import write_result

SERVICES: Final = ("check", "agents", "reload", "checks", "incidents", "status", "forget")
"""Each is offered as `helen.X` and as `helen.<identity>.X`."""
REPLICA_SERVICES: Final = ("release", "has")
"""Offered as `helen.<identity>.X` only: for other Helens, about agents that move."""
RECHECK: Final = "helen.recheck"
"""The task that runs a defined check again; its result counts like a scheduled one."""

CHECK_SECONDS: Final = 30.0
"""The default timeout of a check."""
MAX_CHECK_SECONDS: Final = 3_600.0
MAX_REQUEST_SECONDS: Final = 1e9
"""A longer timeout of a request is not believed."""
PAGE: Final = 100
"""The default length of a page."""
MAX_PAGE: Final = 1_000
MAX_TEXT_CHARS: Final = 255

T = TypeVar("T")

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]


class CheckBody(msgspec.Struct, frozen=True):
    """The body of helen.check."""

    agent: Text
    check: Text
    args: msgspec.Raw = msgspec.Raw(b"{}")
    timeout: float | None = None
    recheck: bool = False
    """`check` names a definition: it runs with the definition's arguments, and its result counts like a scheduled one.
    """


class AgentBody(msgspec.Struct, frozen=True):
    """The body of helen.reload."""

    agent: Text


class ForgetBody(msgspec.Struct, frozen=True):
    """The body of helen.forget: the token proves that the client can read her data directory."""

    agent: Text
    token: Text = ""


class StatusBody(msgspec.Struct, frozen=True):
    """The body of helen.status: another Helen announces herself."""

    sibling: Text = ""


class AgentsQuery(msgspec.Struct, frozen=True):
    """The body of helen.agents."""

    limit: Limit = PAGE
    after: Text = ""
    all: bool = False
    """Include agents that are away."""


_to_json: Final = msgspec.json.Encoder().encode


class _Call(msgspec.Struct, frozen=True):
    """A request for one service."""

    requester: Requester
    body: bytes
    seconds: float
    """How long the client waits for the answer."""
    direct: bool
    """It was sent to this Helen by her identity, and must not be forwarded."""

    def decode(self, schema: type[T]) -> T:
        return decode_body(self.body, schema)

    def reply(self, value: object, effects: Effects) -> None:
        """Answer with something that does not depend on the store."""
        self.requester.reply(_to_json(value), effects)

    def promise(self, value: object, effects: Effects) -> None:
        """Answer once this turn is stored."""
        self.requester.promise(_to_json(value), effects)


def service_names(identity: str) -> tuple[str, ...]:
    own = tuple(f"helen.{identity}.{name}" for name in (*SERVICES, *REPLICA_SERVICES))
    return tuple(f"helen.{name}" for name in SERVICES) + own


class Services:
    def __init__(
        self, state: HelenState, replicas: Replicas, migration: Migration, bundles: AgentBundles, keepalive: Keepalive
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._migration = migration
        self._bundles = bundles
        self._keepalive = keepalive
        own = (self._check, self._agents, self._reload, self._checks, self._incidents, self._status, self._forget)
        replica = (self._release, self._has)
        self._serve = dict(zip((*SERVICES, *REPLICA_SERVICES), (*own, *replica), strict=True))

    def request(self, requester: Requester, request: NetworkRequest, now: Now, effects: Effects) -> None:
        """Handle a request; a Refusal becomes its answer."""
        prefix = f"helen.{self._state.settings.identity}."
        direct = request.service.startswith(prefix)
        name = request.service.removeprefix(prefix if direct else "helen.")
        serve = self._serve.get(name)
        try:
            if serve is None or (name in REPLICA_SERVICES and not direct):
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no service {request.service[:MAX_TEXT_CHARS]}")
            serve(_Call(requester, request.body, _seconds_of(request), direct), now, effects)
        except Refusal as refusal:
            self._refuse(requester, refusal, effects)

    def task(self, requester: Requester, task: NetworkTask, now: Now, effects: Effects) -> None:
        """Handle a task; a Refusal becomes its error."""
        try:
            if task.method != RECHECK:
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no method {task.method[:MAX_TEXT_CHARS]}")
            if task.params.lstrip()[:1] == b"[":
                (wanted,) = decode_body(task.params, tuple[CheckBody])
            else:
                wanted = decode_body(task.params, CheckBody)
            wanted = CheckBody(wanted.agent, wanted.check, timeout=wanted.timeout, recheck=True)
            call = _Call(requester, task.params, MAX_CHECK_SECONDS, direct=False)
            self._run(call, wanted, task.task_id, now, effects)
        except Refusal as refusal:
            self._refuse(requester, refusal, effects)

    def _refuse(self, requester: Requester, refusal: Refusal, effects: Effects) -> None:
        self._state.count("requests_refused")
        requester.refuse(refusal.code, refusal.message, effects)

    def _check(self, call: _Call, now: Now, effects: Effects) -> None:
        ref = call.requester.routing_id.decode("utf-8", "replace")
        self._run(call, call.decode(CheckBody), ref, now, effects)

    def _run(self, call: _Call, wanted: CheckBody, ref: str, now: Now, effects: Effects) -> None:
        """Run a check on an agent that is connected here, or forward the request."""
        state = self._state
        if not is_check_name(wanted.check):
            raise Refusal(codes.MALFORMED, "a check name must be printable and without spaces")
        seconds = CHECK_SECONDS if wanted.timeout is None else wanted.timeout
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_CHECK_SECONDS):
            raise Refusal(codes.MALFORMED, f"timeout must be more than 0 and at most {MAX_CHECK_SECONDS:.0f} seconds")
        deadline = now.mono + min(seconds, call.seconds)
        if state.requests.is_full:
            raise Refusal(codes.TOO_MANY, "too many checks are pending")
        pending = PendingRequest(call.requester, wanted.check, ref, wanted.recheck)
        agent = state.agents.get(wanted.agent)
        if agent is not None and wanted.recheck:
            finding = self._keepalive.check_now(agent, wanted.check, ref, now, effects)
            if finding is not None:
                call.requester.promise(write_result(finding), effects)
                return
        if agent is not None and agent.connection is not None:
            pending.connection = agent.connection
            self._send(agent, pending, wanted, deadline, now, effects)
        elif call.direct or not self._replicas.names:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
        else:
            self._replicas.ask(pending, "check", _to_json(wanted), deadline, now, effects)

    def _send(
        self, agent: Agent, pending: PendingRequest, wanted: CheckBody, deadline: float, now: Now, effects: Effects
    ) -> None:
        connection = pending.connection
        assert connection is not None
        name, args = wanted.check, bytes(wanted.args)
        if wanted.recheck:
            definition = self._state.evaluation.selects(agent.identity, agent.labels, wanted.check)
            if definition is None or definition.alive:
                raise Refusal(codes.NO_SUCH_SERVICE, f"no check {wanted.check} is defined for agent {agent.identity}")
            name, args = definition.scheduled.check, definition.args_json()
        if not args.lstrip().startswith(b"{") or len(args) > MAX_BLOB_BYTES:
            raise Refusal(codes.MALFORMED, f"args must be an object of at most {MAX_BLOB_BYTES} bytes")
        if not connection.has_room(len(args)):
            raise Refusal(codes.TOO_MANY, f"agent {agent.identity} has too many pending checks")
        number = connection.issue()
        if number is None:
            self._state.refuse(connection, "this connection has used all its message ids", now, effects)
            raise Refusal(codes.NOT_SERVING, f"agent {agent.identity} must reconnect first")
        pending.size, pending.enough_time = len(args), deadline - now.mono >= FAIR_SECONDS
        connection.expect(number, pending)
        self._state.requests.add(pending, deadline)
        self._state.count("checks_asked")
        connection.send(Check(name, number, args), effects)

    def _reload(self, call: _Call, now: Now, effects: Effects) -> None:
        wanted = call.decode(AgentBody)
        agent = self._state.agents.get(wanted.agent)
        connection = None if agent is None else agent.connection
        if connection is not None:
            self._state.count("reloads_sent")
            connection.send(Reload(), effects)
            call.reply({"reloaded": wanted.agent}, effects)
        elif call.direct or not self._replicas.names or self._state.requests.is_full:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
        else:
            pending = PendingRequest(call.requester, "", "", False)
            deadline = now.mono + min(call.seconds, CHECK_SECONDS)
            self._replicas.ask(pending, "reload", call.body, deadline, now, effects)

    def _agents(self, call: _Call, now: Now, effects: Effects) -> None:
        query = call.decode(AgentsQuery)
        call.reply(self._state.agents.page(query.all, query.after, query.limit, now), effects)

    def _checks(self, call: _Call, now: Now, effects: Effects) -> None:
        # A promise: the page may show states that are not stored yet.
        call.promise(self._state.evaluation.checks(call.decode(dict[str, Any]), now), effects)

    def _incidents(self, call: _Call, _now: Now, effects: Effects) -> None:
        def on_page(page: dict[str, Any] | Refusal, _now: Now | None, effects: Effects) -> None:
            if isinstance(page, Refusal):
                call.requester.refuse(page.code, page.message, effects)
            else:
                call.promise(page, effects)

        self._state.evaluation.find_incidents(call.decode(dict[str, Any]), on_page, effects)

    def _release(self, call: _Call, _now: Now, effects: Effects) -> None:
        self._migration.release(call.requester, call.decode(ReleaseBody), effects)

    def _has(self, call: _Call, _now: Now, effects: Effects) -> None:
        self._migration.has(call.requester, call.decode(HasBody), effects)

    def _status(self, call: _Call, _now: Now, effects: Effects) -> None:
        if call.body and (sibling := call.decode(StatusBody).sibling):
            self._replicas.introduce(sibling, effects)
        call.reply(status(self._state, self._replicas), effects)

    def _forget(self, call: _Call, now: Now, effects: Effects) -> None:
        """Remove an agent for good: its record, its spools and the states of its checks."""
        wanted = call.decode(ForgetBody)
        token = self._state.settings.token
        if not token or not hmac.compare_digest(token.encode(), wanted.token.encode()):
            raise Refusal(codes.WRONG_CREDENTIALS, "wrong token: use the one in this Helen's data directory")
        agent = self._state.agents.get(wanted.agent)
        is_connected = agent is not None and agent.connection is not None
        if is_connected or self._migration.connection_of(wanted.agent) is not None:
            raise Refusal(codes.IN_USE, f"agent {wanted.agent} is connected: revoke its certificate first")
        was_kept = self._bundles.forget(wanted.agent, effects)
        if agent is not None:
            self._state.agents.forget(agent, effects)
            self._state.spools.forget(wanted.agent)
            self._state.evaluation.forget(wanted.agent, now, effects)
        elif not was_kept:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not known")
        call.promise({"forgotten": wanted.agent}, effects)


def _seconds_of(request: NetworkRequest) -> float:
    """How long the client waits, within limits; the default if its timeout is out of range."""
    in_range = 0.0 <= request.timeout < MAX_REQUEST_SECONDS
    return min(request.timeout, MAX_CHECK_SECONDS) if in_range else CHECK_SECONDS


def status(state: HelenState, replicas: Replicas) -> dict[str, Any]:
    """Helen's status, for people and for other Helens."""
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
    """Decode a body; an empty one is an empty object. Raises Refusal 400 if it is invalid."""
    if has_slow_numbers(body, MAX_BODY_EXPONENTS):
        raise Refusal(codes.MALFORMED, f"invalid body: more than {MAX_BODY_EXPONENTS} numbers with an exponent")
    try:
        return msgspec.json.decode(body or b"{}", type=schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"invalid body: {error}") from None
