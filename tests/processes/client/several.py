"""Several real brokers of one group, for tests that kill them.

Lives here: starting them so that they know each other, and where somebody is. Never here: a promise. Invariant: what
was started is ended, and no log of theirs has a traceback in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scale0.errors import NoAnswer, NotServing, Unreachable
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import until
from tests.processes.client.net import client_of


@contextmanager
def brokers(folder: Path, *names: str, **config: Any) -> Iterator[dict[str, BrokerProcess]]:
    """One group; the first one may change the configuration."""
    with ExitStack() as stack:
        made: dict[str, BrokerProcess] = {}
        for name in names:
            first = next(iter(made.values()), None)
            joins = {} if first is None else {"state": "joining", "peers": [first.endpoints["peer"]]}
            own = {"identity": name, "group": "east", "config_service": first is None, **joins, **config}
            made[name] = stack.enter_context(broker_process(folder / name, **own))
        for broker in made.values():
            until(partial(all_know, broker, names), "they know each other")
        yield made
        for broker in made.values():
            log = broker.log.read_text(errors="replace")
            assert "Traceback" not in log, log[-4_000:]


def all_know(broker: BrokerProcess, names: Sequence[str]) -> bool:
    """True if this broker hears all of these, and finds them active."""
    return states_of(broker) == dict.fromkeys(names, "active")


def states_of(broker: BrokerProcess) -> dict[str, str]:
    """What this broker says of itself and of the others; nothing while it is joining, and serves nobody."""
    try:
        with client_of(broker, timeout=2) as net:
            return {row["broker"]: row["state"] for row in net.brokers()}
    except (NoAnswer, NotServing, Unreachable):
        return {}


def is_there(broker: BrokerProcess, worker: str) -> bool:
    """True if this client is registered there."""
    with client_of(broker, timeout=5) as net:
        return any(row["identity"] == worker for row in net.clients())
