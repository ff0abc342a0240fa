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
from scale0.monitoring.helen.core.agent_bundles import AgentBundles
from scale0.monitoring.helen.core.agent_connection import FAIR_SECONDS, AgentConnection
from scale0.monitoring.helen.core.agents import Agent, is_check_name
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.migration_messages import HasBody, ReleaseBody
from scale0.monitoring.helen.core.pending_requests import PendingRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.state import HelenState
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, Check, Reload
from scale0.monitoring.protocol.results import write_result

SERVICES: Final = ("check", "agents", "reload", "checks", "incidents", "status", "forget")
"""Each is offered as `helen.X`, and as `helen.<identity>.X`."""
BETWEEN_HELENS: Final = ("release", "has")
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


class _Planned(msgspec.Struct, frozen=True):
    """What is read of an entry of a schedule."""

    name: str
    check: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    timeout: float = CHECK_SECONDS


class _Plan(msgspec.Struct, frozen=True):
    """What is read of a schedule."""

    checks: list[_Planned] = []


_plan: Final = msgspec.json.Decoder(_Plan).decode
_to_json: Final = msgspec.json.Encoder().encode

Serve = Callable[[Requester, bytes, float, bool, Now, Effects], None]


def service_names(identity: str) -> tuple[str, ...]:
    """All names under which a Helen offers her services."""
    own = tuple(f"helen.{identity}.{name}" for name in (*SERVICES, *BETWEEN_HELENS))
    return tuple(f"helen.{name}" for name in SERVICES) + own


class Services:
    """Answers requests."""

    __slots__ = ("_alive", "_handover", "_keeping", "_serve", "_siblings", "_state")

    def __init__(
        self, state: HelenState, siblings: Replicas, handover: Migration, keeping: AgentBundles, alive: Keepalive
    ) -> None:
        self._state = state
        self._siblings = siblings
        self._handover = handover
        self._keeping = keeping
        self._alive = alive
        own = (self._check, self._agents, self._reload, self._checks, self._incidents, self._status, self._forget)
        between = (self._release, self._has)
        self._serve: dict[str, Serve] = dict(zip((*SERVICES, *BETWEEN_HELENS), (*own, *between), strict=True))

    def request(self, asker: Requester, service: str, timeout: float, body: bytes, now: Now, step: Effects) -> None:
        """One request; whatever is wrong with it is its answer."""
        prefix = f"helen.{self._state.settings.identity}."
        direct = service.startswith(prefix)
        name = service.removeprefix(prefix if direct else "helen.")
        serve = self._serve.get(name)
        try:
            if serve is None or (name in BETWEEN_HELENS and not direct):
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no service {service[:MAX_TEXT_CHARS]}")
            serve(asker, body, timeout, direct, now, step)
        except Refusal as refusal:
            self._state.count("requests_refused")
            asker.refuse(refusal.code, refusal.message, step)

    def task(self, asker: Requester, task_id: str, method: str, params: bytes, now: Now, step: Effects) -> None:
        """One task."""
        try:
            if method != RECHECK:
                raise Refusal(codes.NO_SUCH_SERVICE, f"Helen has no method {method[:MAX_TEXT_CHARS]}")
            if params.lstrip()[:1] == b"[":
                (wanted,) = read(params, tuple[CheckBody])
            else:
                wanted = read(params, CheckBody)
            wanted = CheckBody(wanted.agent, wanted.check, timeout=wanted.timeout, recheck=True)
            self._run(asker, wanted, task_id, MAX_CHECK_SECONDS, False, now, step)
        except Refusal as refusal:
            self._state.count("requests_refused")
            asker.refuse(refusal.code, refusal.message, step)

    def _check(self, asker: Requester, body: bytes, timeout: float, direct: bool, now: Now, step: Effects) -> None:
        ref = asker.routing_id.decode("utf-8", "replace")
        self._run(asker, read(body, CheckBody), ref, timeout, direct, now, step)

    def _run(
        self, asker: Requester, wanted: CheckBody, ref: str, most_seconds: float, direct: bool, now: Now, step: Effects
    ) -> None:
        """Have a check run on an agent, here or elsewhere."""
        state = self._state
        if not is_check_name(wanted.check):
            raise Refusal(codes.MALFORMED, "a check's name is printable and has no spaces")
        seconds = CHECK_SECONDS if wanted.timeout is None else wanted.timeout
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_CHECK_SECONDS):
            raise Refusal(codes.MALFORMED, f"timeout is more than 0 and at most {MAX_CHECK_SECONDS:.0f} seconds")
        deadline = now.mono + min(seconds, most_seconds)
        if state.open.is_full:
            raise Refusal(codes.TOO_MANY, "too many checks are being waited for")
        asked = PendingRequest(asker, wanted.check, ref, wanted.recheck)
        agent = state.agents.get(wanted.agent)
        if agent is not None and wanted.recheck:
            finding = self._alive.look_at(agent, wanted.check, ref, now, step)
            if finding is not None:
                asker.promise(write_result(finding), step)
                return
        line = None if agent is None else agent.line
        if agent is None or line is None:
            if direct or not self._siblings.names:
                raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
            self._siblings.ask(asked, "check", _to_json(wanted), deadline, now, step)
            return
        self._send(line, agent, asked, wanted, deadline, now, step)

    def _send(
        self,
        line: AgentConnection,
        agent: Agent,
        asked: PendingRequest,
        wanted: CheckBody,
        deadline: float,
        now: Now,
        step: Effects,
    ) -> None:
        name, args = wanted.check, bytes(wanted.args)
        if wanted.recheck:
            planned = self._planned(agent, wanted.check)
            name, args = planned.check or planned.name, bytes(planned.args)
        if not args.lstrip().startswith(b"{") or len(args) > MAX_BLOB_BYTES:
            raise Refusal(codes.MALFORMED, f"args is an object of at most {MAX_BLOB_BYTES} bytes")
        if not line.has_room(len(args)):
            raise Refusal(codes.TOO_MANY, f"agent {agent.identity} has too many checks to answer")
        number = line.issue()
        if number is None:
            self._state.refuse(line, "this connection has used up its message ids", now, step)
            raise Refusal(codes.NOT_SERVING, f"agent {agent.identity} must connect again")
        asked.line, asked.size, asked.fair = line, len(args), deadline - now.mono >= FAIR_SECONDS
        line.expect(number, asked)
        self._state.open.add(asked, deadline)
        self._state.count("checks_asked")
        line.say(Check(name, number, args), step)

    def _planned(self, agent: Agent, name: str) -> _Planned:
        """A check that is defined for this agent."""
        plan = _plan(self._state.watch.schedule_for(agent.identity, agent.labels))
        for planned in plan.checks:
            if planned.name == name:
                return planned
        raise Refusal(codes.NO_SUCH_SERVICE, f"no check {name} is defined for agent {agent.identity}")

    def _reload(self, asker: Requester, body: bytes, timeout: float, direct: bool, now: Now, step: Effects) -> None:
        wanted = read(body, AgentBody)
        agent = self._state.agents.get(wanted.agent)
        line = None if agent is None else agent.line
        if line is not None:
            self._state.count("reloads_sent")
            line.say(Reload(), step)
            asker.reply(_to_json({"reloaded": wanted.agent}), step)
        elif direct or not self._siblings.names or self._state.open.is_full:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not connected")
        else:
            asked = PendingRequest(asker, "", "", False)
            self._siblings.ask(asked, "reload", body, now.mono + min(timeout, CHECK_SECONDS), now, step)

    def _agents(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, step: Effects) -> None:
        query = read(body, AgentsQuery)
        asker.reply(_to_json(self._state.agents.page(query.all, query.after, query.limit, now)), step)

    def _checks(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, step: Effects) -> None:
        # A promise: it may speak of states that this turn has only decided.
        asker.promise(_to_json(self._state.watch.checks(read(body, dict[str, Any]), now)), step)

    def _incidents(
        self, asker: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, step: Effects
    ) -> None:
        def tell(page: dict[str, Any] | Refusal, _now: Now | None, out: Effects) -> None:
            if isinstance(page, Refusal):
                asker.refuse(page.code, page.message, out)
            else:
                asker.promise(_to_json(page), out)

        self._state.watch.find_incidents(read(body, dict[str, Any]), tell, step)

    def _release(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, step: Effects) -> None:
        self._handover.release(asker, read(body, ReleaseBody), step)

    def _has(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, step: Effects) -> None:
        self._handover.has(asker, read(body, HasBody), step)

    def _status(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, _now: Now, step: Effects) -> None:
        if body and (sibling := read(body, StatusBody).sibling):
            self._siblings.meet(sibling, step)
        asker.reply(_to_json(status(self._state, self._siblings)), step)

    def _forget(self, asker: Requester, body: bytes, _timeout: float, _direct: bool, now: Now, step: Effects) -> None:
        """An agent that is gone for good: its record, its spools and the states of its checks."""
        wanted = read(body, ForgetBody)
        token = self._state.settings.token
        if not token or not hmac.compare_digest(token.encode(), wanted.token.encode()):
            raise Refusal(codes.WRONG_CREDENTIALS, "that is not the token in this Helen's folder")
        agent = self._state.agents.get(wanted.agent)
        if (agent is not None and agent.line is not None) or self._handover.line_of(wanted.agent) is not None:
            raise Refusal(codes.IN_USE, f"agent {wanted.agent} is connected: revoke its certificate first")
        kept = self._keeping.forget(wanted.agent, step)
        if agent is not None:
            self._state.agents.forget(agent, step)
            self._state.spools.forget(wanted.agent)
            self._state.watch.forget(wanted.agent, now, step)
        elif not kept:
            raise Refusal(codes.NO_SUCH_SERVICE, f"agent {wanted.agent} is not known")
        asker.promise(_to_json({"forgotten": wanted.agent}), step)


def status(state: HelenState, siblings: Replicas) -> dict[str, Any]:
    """How this Helen is: for people, and for other Helens that look for room."""
    return {
        "identity": state.settings.identity,
        "advertise": state.settings.advertise,
        "agents": state.agents.connected,
        "max_agents": state.settings.max_agents,
        "known": len(state.agents.by_identity),
        "connections": len(state.lines),
        "open_checks": state.open.count,
        "siblings": siblings.names,
        "counts": dict(state.counts),
    }


def read(body: bytes, shape: type[T]) -> T:
    """A body as a value of that shape; an empty one is an empty object. Refusal 400: it is something else."""
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"the body is not what it should be: {error}") from None
