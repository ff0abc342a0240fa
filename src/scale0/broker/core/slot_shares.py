"""How many requests of several accounts may be in flight at one service.

A backend orders what it was sent, so a request waits there behind all others; at the broker accounts take turns.
Therefore accounts that use a service at the same time have together no more in flight than the service needs for its
rate, which is found by trial: the limit is kept low unless more of it makes the service faster. Invariants: an account
alone is not limited; below the limit nobody is; above it, an account that has less than its part may still take a slot.
"""

from __future__ import annotations

from typing import Any, Final

ACTIVE_SECONDS: Final = 5.0
"""How long an account without requests in flight still counts."""
REVIEW_SECONDS: Final = 1.0
"""How often that is looked at, while there are several."""
START: Final = 32
"""The first limit for each backend: at 25,000 requests a second, what it answers in 1.3 ms. Services with so few slots
are not limited before a trial."""
START_PART: Final = 8
"""Or one slot of so many: a service that really runs all of its slots at once is not slowed down by more than this."""
LEAST: Final = 16
"""The least limit."""
ROUNDS: Final = 2
"""A trial takes so many times the limit in answers, so that its requests are answered within it."""
TRIAL_SECONDS: Final = 0.1
"""And at least this long."""
PAUSE_FACTOR: Final = 20
"""After trials of a smaller and of a greater limit, the next ones wait so many times the duration of the last: trials
cost a few percent."""
PAUSE_SECONDS: Final = 1.0
"""And at least this long."""
STEP: Final = 4
"""A trial multiplies or divides the limit by this."""
ELASTICITY: Final = 2 / 3
"""A limit is kept if the rate is at least that of the limit before, times the ratio of the limits to this power: half
the limit must leave 63 % of the rate, twice the limit must give 159 %. A service that runs all of its slots at once has
a rate in proportion to the limit. One that answers requests one after the other does not: a greater limit makes each of
them wait longer, and the rate only a little higher."""
UNLIMITED: Final = 1 << 62

Account = Any


def _is_over(account: Account, idle_since: float, mono: float) -> bool:
    """True for an account without requests in flight that is not active any more; without keys it is a connection."""
    return mono - idle_since >= ACTIVE_SECONDS or getattr(account, "is_gone", False)


class SlotShares:
    """The requests in flight at one service, by account."""

    __slots__ = (
        *("_best", "_done", "_excess", "_from", "_grow", "_is_reached", "_learned", "_next", "_offered", "_since"),
        *("alone", "busy", "idle", "idle_since", "in_flight", "is_watched", "most"),
    )

    def __init__(self) -> None:
        self.alone: Account | None = None
        """The only account, of which all requests in flight are. None: there are several, or none yet."""
        self.idle_since = 0.0
        """When its last request ended."""
        self.busy: dict[Account, int] = {}
        """If there are several: their requests in flight."""
        self.idle: dict[Account, float] = {}
        """Accounts that have nothing in flight, and since when; the first one longest."""
        self.in_flight = 0
        self.most = UNLIMITED
        """How many all accounts together may have in flight."""
        self.is_watched = False
        """A timer will `review` it, because several accounts are active."""
        self._learned = 0
        self._offered = (0, 0)
        """The backends and slots for which the limit was learned."""
        self._is_reached = False
        """The limit was reached since the last judgement: it decides the rate."""
        self._since = 0.0
        self._done = 0
        self._excess = 0
        """Requests that were in flight beyond a smaller limit: their answers do not count."""
        self._from = 0
        """The limit before the trial that is under way; 0: there is none."""
        self._best = 0.0
        """The rate with it."""
        self._grow = False
        """The next trial is of a greater limit."""
        self._next = 0.0

    def has_room(self, account: Account) -> bool:
        if self.in_flight < self.most:
            return True
        part = self.most // (len(self.busy) + len(self.idle))
        return self.busy.get(account, 0) < max(1, part)

    def take(self, account: Account, backends: int, slots: int, mono: float) -> None:
        """A request is handed out; the service has so many backends and slots."""
        if self.most == UNLIMITED:
            if self.alone is None or (not self.in_flight and _is_over(self.alone, self.idle_since, mono)):
                self.alone = account
            if account == self.alone:
                self.in_flight += 1
                return
            if self.in_flight:
                self.busy[self.alone] = self.in_flight
            else:
                self.idle[self.alone] = self.idle_since
            self.alone = None
        self.in_flight += 1
        if self.in_flight >= self.most:
            self._is_reached = True
        count = self.busy.get(account, 0)
        self.busy[account] = count + 1
        if not count and self.idle.pop(account, None) is None:
            self._limit(backends, slots, mono)

    def give(self, account: Account, mono: float) -> bool:
        """A request has left its backend; True if the limit changed."""
        self.in_flight -= 1
        if self.most == UNLIMITED:
            self.idle_since = mono
            return False
        count = self.busy[account] - 1
        if count:
            self.busy[account] = count
        else:
            del self.busy[account]
            self.idle[account] = mono
        if self._excess:
            self._excess -= 1
            self._since = mono
            return False
        self._done += 1
        return self._done >= ROUNDS * self.most and mono - self._since >= TRIAL_SECONDS and self._judge(mono)

    def review(self, backends: int, slots: int, mono: float) -> None:
        """Forget the accounts that are no longer active: one alone is not limited."""
        if self.alone is not None:
            return
        for account in [one for one, since in self.idle.items() if _is_over(one, since, mono)]:
            del self.idle[account]
        if len(self.busy) + len(self.idle) > 1:
            self._limit(backends, slots, mono)
            return
        self.most = UNLIMITED
        self.alone = next(iter(self.busy or self.idle), None)
        self.idle_since = self.idle.get(self.alone, mono)
        self.busy.clear()
        self.idle.clear()

    def _limit(self, backends: int, slots: int, mono: float) -> None:
        """Several accounts are active: limit them."""
        if self._offered != (backends, slots):
            self._offered = (backends, slots)
            self._learned = min(slots, max(START * backends, slots // START_PART))
            self._next = 0.0
        elif self.most != UNLIMITED:
            return
        self.most = self._learned
        self._from = 0
        self._grow = False
        self._begin(mono)

    def _begin(self, mono: float) -> None:
        self._since, self._done, self._is_reached = mono, 0, False
        self._excess = max(0, self.in_flight - self.most)

    def _judge(self, mono: float) -> bool:
        """End a trial, or begin one, if the limit decided the rate."""
        before, seconds = self.most, mono - self._since
        rate = self._done / seconds
        if not self._is_reached:
            self.most = self._from or self.most
            self._from = 0
        elif not self._from:
            self._best = rate
            if mono >= self._next:
                self._from = self.most
                self._step(mono, seconds)
        elif rate >= self._best * (self.most / self._from) ** ELASTICITY:
            if self._grow:
                self._best = rate
            self._from = self.most
            self._step(mono, seconds)
        else:
            self.most = self._from
            self._end_trial(mono, seconds)
        self._learned = self._from or self.most
        self._begin(mono)
        return self.most != before

    def _step(self, mono: float, seconds: float) -> None:
        slots = self._offered[1]
        self.most = min(slots, self.most * STEP) if self._grow else max(min(LEAST, slots), self.most // STEP)
        if self.most == self._from:
            self._end_trial(mono, seconds)

    def _end_trial(self, mono: float, seconds: float) -> None:
        self._from = 0
        if self._grow:
            self._next = mono + max(PAUSE_SECONDS, PAUSE_FACTOR * seconds)
        self._grow = not self._grow
