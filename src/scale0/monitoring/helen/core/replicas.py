"""The other Helens of the network: their endpoints, their free capacity, and requests that are forwarded to them.

A status of another Helen is validated, and is used for redirects only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.names import is_identity
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, PendingRequest
from scale0.monitoring.helen.core.state import HelenState

MAX_REPLICAS: Final = 16
"""Other Helens; a request for an agent that is not here goes to all of them."""
MAX_ENDPOINT_CHARS: Final = 300
STATUS_SECONDS: Final = 5.0
"""How long another Helen may take to answer a status request."""
ANSWER_SECONDS: Final = 25.0
"""A Helen whose last answer is older may be separated from us: she is asked every ten seconds."""
SEPARATED_SECONDS: Final = 120.0
"""After this time without an answer, a Helen counts as dead: her agents had the time to connect to another one."""
SILENT_AFTER: Final = 3
"""After this many requests in a row without an answer, nothing waits for her until her next status."""


class _Status(msgspec.Struct, frozen=True):
    """The fields of another Helen's `helen.status` that are used."""

    advertise: str = ""
    agents: int = 0
    max_agents: int = 0


_from_json: Final = msgspec.json.Decoder(_Status).decode


class Replicas:
    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._known: dict[str, _Status | None] = {}
        self._failures: dict[str, int] = {}
        """Requests in a row without an answer."""
        self._heard: dict[str, float] = {}
        """When each of them last answered, monotonic time; also of those that are no longer in the list."""
        self._listed: dict[str, float] = {}
        """Since when each of them is in the list, monotonic time; also of those that left it a short time ago."""
        self._expected_until = -math.inf
        """Until when there may be others that are not known."""
        self._sent: dict[str, int] = {}
        """Agents that were redirected to her since her last status."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    @property
    def live(self) -> list[str]:
        """The Helens that answer, as far as is known."""
        return [name for name in self._known if self._failures.get(name, 0) < SILENT_AFTER]

    def note_answer(self, name: str, answered: bool) -> None:
        self._failures[name] = 0 if answered else self._failures.get(name, 0) + 1

    def expect(self, now: Now) -> None:
        """A start: the list of Helens will soon be known, and another one may be separated and not in it."""
        self._expected_until = now.mono + SEPARATED_SECONDS

    def have_answered(self, since: float, now: Now) -> bool:
        """True if each of them has answered since this monotonic time, and recently. One that did not is forgotten
        after SEPARATED_SECONDS."""
        if now.mono < self._expected_until:
            return False
        since = max(since, now.mono - ANSWER_SECONDS)
        self._heard = {name: at for name, at in self._heard.items() if now.mono - at < SEPARATED_SECONDS}
        if not all(at >= since for at in self._heard.values()):
            return False
        return all(name in self._heard or now.mono - at >= SEPARATED_SECONDS for name, at in self._listed.items())

    def set_names(self, names: Iterable[str], now: Now, effects: Effects) -> None:
        """Replace the list of Helens, and request the status of each."""
        own = self._state.settings.identity
        wanted = sorted({name for name in names if name != own and is_identity(name)})[:MAX_REPLICAS]
        kept = {name: at for name, at in self._listed.items() if name in wanted or now.mono - at < SEPARATED_SECONDS}
        self._listed = dict.fromkeys(wanted, now.mono) | kept
        self._known = {name: self._known.get(name) for name in wanted}
        self._failures = {name: count for name, count in self._failures.items() if name in self._known}
        for name in wanted:
            self._ask_status(name, effects)

    def introduce(self, name: str, effects: Effects) -> None:
        """A Helen announces herself before she is in the list; she is used once she answers."""
        if name in self._known or name == self._state.settings.identity or not is_identity(name):
            return
        if len(self._known) < MAX_REPLICAS:
            self._known[name] = None
            self._failures[name] = SILENT_AFTER
            self._ask_status(name, effects)

    def _ask_status(self, name: str, effects: Effects) -> None:
        body = b'{"sibling":"%b"}' % self._state.settings.identity.encode()
        effects.ask(ForwardRequest(f"helen.{name}.status", body, STATUS_SECONDS, partial(self._on_status, name)))

    def _on_status(self, name: str, value: Any, now: Now, _effects: Effects) -> None:
        if name in self._known:
            self._known[name] = status = _read_status(value)
            self._sent.pop(name, None)
            self.note_answer(name, status is not None)
            if status is not None:
                self._heard[name] = now.mono

    def redirect_endpoint(self) -> str | None:
        """The endpoint of the Helen with the most room, for a redirect; the agent is counted as sent there."""
        best, most, endpoint = "", 0, None
        for name, status in self._known.items():
            if status is None or not status.advertise or self._failures.get(name, 0) >= SILENT_AFTER:
                continue
            room = status.max_agents - status.agents - self._sent.get(name, 0)
            if room > most:
                best, most, endpoint = name, room, status.advertise
        if best:
            self._sent[best] = self._sent.get(best, 0) + 1
        return endpoint

    def ask(
        self, pending: PendingRequest, service: str, body: bytes, deadline: float, now: Now, effects: Effects
    ) -> None:
        """Forward a request to all of them; there is at least one."""
        names = self.names
        pending.elsewhere = len(names)
        self._state.requests.add(pending, deadline)
        self._state.count("requests_forwarded")
        then = partial(self._state.requests.on_replica_answer, pending)
        for name in names:
            effects.ask(ForwardRequest(f"helen.{name}.{service}", body, deadline - now.mono, then))


def _read_status(value: Any) -> _Status | None:
    if not isinstance(value, bytes):
        return None
    try:
        status = _from_json(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return status if is_endpoint(status.advertise) else None


def is_endpoint(text: str) -> bool:
    """True for an empty text, and for a valid parameter of `redirect`."""
    return len(text) <= MAX_ENDPOINT_CHARS and text.isascii() and text.isprintable() and " " not in text
