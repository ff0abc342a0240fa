"""The command `run_check`: run a check now (PROTOCOL 4).

The command becomes a request to `helen.check`, at this broker or at another. Invariants: it is recorded when it is
accepted, before it is sent, and again if it fails; a command with the id of an unanswered one is ignored; values of
`args` are never recorded, because they may be secrets; it is answered once, unless the client is gone. A request to
`helen.check` without the command is recorded, too, and a flood of them as a number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from scale0.broker.admin.access import OPERATOR
from scale0.broker.admin.commands import AdminCall, AdminCommands, AdminResult, Outcome
from scale0.broker.core.audit_limit import AuditLimit
from scale0.broker.core.connections import Connection
from scale0.broker.core.requests import Requests
from scale0.broker.core.state import BrokerState
from scale0.config.network_documents import HELEN_SERVICE
from scale0.history.events.changes import ManagementCommanded
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, has_slow_numbers
from scale0.transport.core.codec import depth_within

RUN_SECONDS: Final = 30.0
MAX_RUN_SECONDS: Final = 3_600.0
"""The same limit as Helen's."""
GRACE_SECONDS: Final = 5.0
"""How much longer than Helen the broker waits: her error explains why there is no result."""
MAX_NAME_CHARS: Final = 255
MAX_NOTED: Final = 20
"""Argument names in the event."""
MAX_NOTED_CHARS: Final = 64
FIRST_ID: Final = 2**63
"""Requests of commands without an id are numbered from here, above any id on the wire."""
RUN_CHECK: Final = "run_check"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class CheckRequest(msgspec.Struct, frozen=True):
    agent: Name
    check: Name
    args: dict[str, Any] = {}
    timeout: float | None = None
    recheck: bool | None = None
    """True: run the agent's defined check, and use the result; False: run it without effect on the state. None: True
    without `args`, with a fallback to False if the check is not defined.
    """


class PendingCheck(NamedTuple):
    call: AdminCall
    wanted: CheckRequest
    noted: dict[str, Any]
    seconds: float
    deadline: float


class CheckCommands:
    def __init__(self, management: AdminCommands, state: BrokerState, requests: Requests) -> None:
        self._management = management
        self._state = state
        self._requests = requests
        self._next = FIRST_ID
        management.table[RUN_CHECK] = (OPERATOR, self._run)
        self._limit = AuditLimit(state, checks_of)
        requests.on_helen = self._record

    def _run(self, call: AdminCall) -> Outcome:
        if call.request.id != "" and (RUN_CHECK, call.request.id) in call.connection.outstanding:
            self._state.count("requests_repeated")
            return None
        wanted = wanted_of(call, self._state.limits.max_json_depth)
        if not self._state.serving:
            raise Refusal(codes.NOT_SERVING, f"this broker is {self._state.state}")
        self._management.must_have_room()  # a command that cannot be recorded is not run
        seconds = wanted.timeout
        if seconds is None:
            policy = self._state.policies.get(HELEN_SERVICE)
            usual = RUN_SECONDS if policy is None or policy.timeout is None else policy.timeout
            seconds = min(usual, MAX_RUN_SECONDS)
        if not 0 < seconds <= MAX_RUN_SECONDS:
            raise Refusal(codes.MALFORMED, f"timeout is above 0 and at most {MAX_RUN_SECONDS:g}")
        wait = min(seconds + GRACE_SECONDS, self._state.limits.max_request_timeout)
        run = PendingCheck(call, wanted, noted(wanted), seconds, call.now.mono + wait)
        self._management.record(call, AdminResult(None, after=run.noted))
        as_defined = wanted.recheck if wanted.recheck is not None else not wanted.args
        self._ask(call.connection, run, as_defined, call.now, call.effects, after_commit=True)
        return None

    def _ask(
        self,
        origin: Connection,
        run: PendingCheck,
        as_defined: bool,
        now: Now,
        effects: Effects,
        after_commit: bool = False,
    ) -> None:
        """Submit it as a request of the client, with the same rules for queueing, forwarding and deadlines."""
        wanted, policy = run.wanted, self._state.policies.get(HELEN_SERVICE)
        body: dict[str, Any] = {"agent": wanted.agent, "check": wanted.check, "timeout": run.seconds}
        body.update({"recheck": True} if as_defined else {"args": wanted.args})
        self._next += 1
        id_ = run.call.request.id
        self._requests.submit(
            origin,
            self._next if id_ == "" else (RUN_CHECK, id_),
            HELEN_SERVICE,
            (msgspec.json.encode(body),),
            run.deadline - now.mono,
            bool(policy is not None and policy.retry),
            now,
            effects,
            then=partial(self._ended, run, as_defined),
            after_commit=after_commit,
        )

    def _ended(
        self,
        run: PendingCheck,
        as_defined: bool,
        origin: Connection,
        code: int,
        message: str,
        bodies: Sequence[bytes],
        now: Now,
        effects: Effects,
    ) -> None:
        """Send the result to the client's current connection."""
        undefined = code == codes.NO_SUCH_SERVICE and as_defined and run.wanted.recheck is None
        if undefined and now.mono < run.deadline:
            self._ask(origin, run, False, now, effects)
            return
        call = run.call._replace(connection=origin, now=now, effects=effects)
        if code != codes.OK:
            self._management.fail(call, code, message, AdminResult(None, after=run.noted))
        elif len(bodies) != 1 or not is_json(bodies[0]):
            message = f"the backend of {HELEN_SERVICE} sent an invalid answer"
            self._management.fail(call, codes.FAILED, message, AdminResult(None, after=run.noted))
        else:
            self._management.answer_recorded(call, msgspec.Raw(bodies[0]))

    def _record(
        self, who: str, origin: Connection, service: str, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """A client runs a check without a role: record it as well, because a check can read what its agent can read."""
        if service.rpartition(".")[2] != "check":
            return
        after, subject = dict[str, Any](), ""
        with contextlib.suppress(IndexError, msgspec.MsgspecError, ValueError, RecursionError):  # Helen refuses it
            wanted = decode_request(bodies[0])
            after, subject = noted(wanted), f"{wanted.agent}/{wanted.check}"
        place = f"{origin.socket}/{origin.name}"
        event = ManagementCommanded(identity=who, command=service, code=codes.OK, origin=place, after=after)
        self._limit.record(who, event, now, effects, subject)


def checks_of(user: str, more: int, subjects: Sequence[str]) -> ManagementCommanded:
    after = {"checks": more, "of": list(subjects)}
    return ManagementCommanded(identity=user, command=HELEN_SERVICE, code=codes.OK, after=after)


def wanted_of(call: AdminCall, max_depth: int) -> CheckRequest:
    """Decode the command from its options or, because `args` may be large, from its body."""
    if not depth_within(call.body, max_depth):
        raise Refusal(codes.MALFORMED, f"the body nests deeper than {max_depth}")
    try:
        if call.body:
            wanted = decode_request(call.body)
        else:
            fields = {name: getattr(call.request, name) for name in CheckRequest.__struct_fields__}
            wanted = msgspec.convert({name: one for name, one in fields.items() if one is not None}, CheckRequest)
        msgspec.json.encode(wanted.args)  # some values of MessagePack have no JSON form
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise Refusal(codes.MALFORMED, f"run_check takes agent, check, args, timeout and recheck: {error}") from None
    if not (wanted.agent.isprintable() and wanted.check.isprintable()):
        raise Refusal(codes.MALFORMED, "the names of an agent and of a check must be printable")
    return wanted


def decode_request(body: bytes) -> CheckRequest:
    """Raises ValueError (one of msgspec's or this one) if it is invalid, or slow to decode."""
    if has_slow_numbers(body, MAX_BODY_EXPONENTS):
        raise ValueError(f"more than {MAX_BODY_EXPONENTS} numbers with an exponent")
    return msgspec.json.decode(body, type=CheckRequest)


def noted(wanted: CheckRequest) -> dict[str, Any]:
    """What is recorded: check, agent and the names of the arguments, but not their values."""
    out: dict[str, Any] = {"agent": wanted.agent, "check": wanted.check}
    if wanted.args:
        out["args"] = [name[:MAX_NOTED_CHARS] for name in sorted(wanted.args)[:MAX_NOTED]]
    if wanted.recheck is not None:
        out["recheck"] = wanted.recheck
    return out


def is_json(body: bytes) -> bool:
    """True for one JSON value that a reader can decode completely, and without many numbers that are slow to decode."""
    if has_slow_numbers(body, MAX_BODY_EXPONENTS):
        return False
    try:
        msgspec.json.decode(body)  # not as Raw, which does not validate UTF-8 in strings
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True
