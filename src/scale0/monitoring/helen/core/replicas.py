"""The other Helens of the network: who they are, where agents reach them, and who has room.

Lives here: `Replicas`, and how a question for an agent that is not here goes to them. Never here: a service's own
meaning. Invariant: what another Helen says is believed only as far as it is well formed, and only about room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_identity
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, PendingRequest
from scale0.monitoring.helen.core.state import HelenState

MAX_REPLICAS: Final = 16
"""Other Helens that are asked; each question for an agent that is not here goes to all of them."""
MAX_ENDPOINT_CHARS: Final = 300
STATUS_SECONDS: Final = 5.0
"""How long another Helen may take to say how she is."""
SILENT_AFTER: Final = 3
"""Questions in a row that she did not answer, and nobody waits for her until she says again how she is."""


class _Status(msgspec.Struct, frozen=True):
    """What is read of another Helen's `helen.status`."""

    advertise: str = ""
    agents: int = 0
    max_agents: int = 0


_from_json: Final = msgspec.json.Decoder(_Status).decode


class Replicas:
    """The other Helens, by identity."""

    __slots__ = ("_failures", "_known", "_sent", "_state")

    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._known: dict[str, _Status | None] = {}
        self._failures: dict[str, int] = {}
        """Questions in a row that one did not answer."""
        self._sent: dict[str, int] = {}
        """Agents that were sent to one since she last said how many she has."""

    @property
    def names(self) -> tuple[str, ...]:
        """Who they are."""
        return tuple(self._known)

    @property
    def live(self) -> list[str]:
        """Those who answer, as far as is known."""
        return [name for name in self._known if self._failures.get(name, 0) < SILENT_AFTER]

    def note_answer(self, name: str, answered: bool) -> None:
        """One of them answered a question, or did not."""
        self._failures[name] = 0 if answered else self._failures.get(name, 0) + 1

    def set_names(self, names: Iterable[str], effects: Effects) -> None:
        """These are there now; each is asked how she is."""
        own = self._state.settings.identity
        wanted = sorted({name for name in names if name != own and is_identity(name)})[:MAX_REPLICAS]
        self._known = {name: self._known.get(name) for name in wanted}
        self._failures = {name: count for name, count in self._failures.items() if name in self._known}
        for name in wanted:
            self._ask_status(name, effects)

    def introduce(self, name: str, effects: Effects) -> None:
        """One says that she is there, before the network was asked again; she is believed once she answers."""
        if name in self._known or name == self._state.settings.identity or not is_identity(name):
            return
        if len(self._known) < MAX_REPLICAS:
            self._known[name] = None
            self._failures[name] = SILENT_AFTER
            self._ask_status(name, effects)

    def _ask_status(self, name: str, effects: Effects) -> None:
        body = b'{"sibling":"%b"}' % self._state.settings.identity.encode()
        effects.ask(ForwardRequest(f"helen.{name}.status", body, STATUS_SECONDS, _Reader(self, name).hear))

    def set_status(self, name: str, status: _Status | None) -> None:
        """How one of them is, as long as she is known; None: she does not say, or nothing that makes sense."""
        if name in self._known:
            self._known[name] = status
            self._sent.pop(name, None)
            self.note_answer(name, status is not None)

    def redirect_endpoint(self) -> str | None:
        """Where an agent that has no room here should go: to whoever has most room. It is counted as sent there."""
        best, most, redirect_endpoint = "", 0, None
        for name, status in self._known.items():
            if status is None or not status.advertise or self._failures.get(name, 0) >= SILENT_AFTER:
                continue
            room = status.max_agents - status.agents - self._sent.get(name, 0)
            if room > most:
                best, most, redirect_endpoint = name, room, status.advertise
        if best:
            self._sent[best] = self._sent.get(best, 0) + 1
        return redirect_endpoint

    def ask(
        self, pending: PendingRequest, service: str, body: bytes, deadline: float, now: Now, effects: Effects
    ) -> None:
        """Put a question to all of them; there is at least one."""
        names = self.names
        pending.elsewhere = len(names)
        self._state.requests.add(pending, deadline)
        self._state.count("requests_forwarded")
        for name in names:
            effects.ask(
                ForwardRequest(f"helen.{name}.{service}", body, deadline - now.mono, _Waiter(self._state, pending).hear)
            )


class _Waiter:
    """Hands one Helen's answer to the question that waits for it."""

    __slots__ = ("_asked", "_state")

    def __init__(self, state: HelenState, pending: PendingRequest) -> None:
        self._state = state
        self._asked = pending

    def hear(self, value: Any, _now: Now, effects: Effects) -> None:
        self._state.requests.on_replica_answer(self._asked, value, effects)


class _Reader:
    """Keeps what one Helen says of herself, as long as she is known."""

    __slots__ = ("_name", "_replicas")

    def __init__(self, replicas: Replicas, name: str) -> None:
        self._replicas = replicas
        self._name = name

    def hear(self, value: Any, _now: Now, _step: Effects) -> None:
        status = None
        if isinstance(value, bytes):
            try:
                status = _from_json(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                status = None
        if status is not None and not is_endpoint(status.advertise):
            status = None
        self._replicas.set_status(self._name, status)


def is_endpoint(text: str) -> bool:
    """True for nothing, and for what can stand behind `redirect`."""
    return len(text) <= MAX_ENDPOINT_CHARS and text.isascii() and text.isprintable() and " " not in text
