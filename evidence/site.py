"""What the attacks are made against: a broker without keys and with HTTP, and one that requires keys."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from nacl import pwhash

from evidence.model import AttackRecord, Campaign, Violation
from evidence.processes import REPOSITORY, Broker, free_ports
from evidence.raw import Connection, Keyed, Pair, Raw, new_pair

PASSWORD: Final = "correct horse 7"
ADMIN: Final = "ada"
MAX_MEMORY_BYTES: Final = 500 * 1024 * 1024
KEY_SECONDS: Final = 20.0
"""Within which a stored key must be accepted: the broker reads the directory twice a second."""
OPEN, KEYS = "open", "keys"
KEY_RULES: Final = {
    "alice": ("frontend", ""),
    "bob": ("frontend", ""),
    "mallory": ("frontend", "call:public.* submit:public.*"),
    "work": ("backend", ""),
    "other": ("backend", ""),
    "hired": ("backend", "offer:public.* take:public.*"),
}
"""By the name of a key: its role, and what its rules allow."""


class Succeeded(Exception):
    """The attack had an effect that it must not have."""


class NotJudged(Exception):
    """What the attack needs does not work, so that it could not be tried."""


Run = Callable[["Site"], str]


class Attack:
    """One attack: it returns what it was answered, or raises Succeeded."""

    def __init__(self, name: str, promise: str, where: str, slow: bool, run: Run) -> None:
        self.name, self.promise, self.where, self.run = name, promise, where, run
        self.slow = slow
        """It takes seconds: the quick ones are tried first."""


ATTACKS: Final[dict[str, Attack]] = {}


def attack(promise: str, where: str = OPEN, slow: bool = False) -> Callable[[Run], Run]:
    """Registers a function by its name, with the promise that it tries to break."""

    def register(run: Run) -> Run:
        name = run.__name__
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(name, promise, where, slow, run)
        return run

    return register


def must(condition: bool, what: str) -> None:
    """Raises Succeeded unless the condition holds."""
    if not condition:
        raise Succeeded(what)


def given(condition: bool, what: str) -> None:
    """Raises NotJudged unless the condition, which the attack only needs, holds."""
    if not condition:
        raise NotJudged(what)


class Site:
    """Both brokers, and connections that are closed after each attack."""

    def __init__(self, source: Path, folder: Path) -> None:
        hashed = pwhash.argon2id.str(PASSWORD.encode(), 1, 65_536).rstrip(b"\0").decode()
        admins = [{"auth_id": ADMIN, "password_hash": hashed, "role": "admin"}]
        (self.http_port,) = free_ports(1)
        web = {"enabled": True, "port": self.http_port}
        self.open = Broker(source, folder, OPEN, admins=admins, management=web, max_requests_per_second=2_000)
        self.keyed = Broker(source, folder, KEYS, admins=admins, curve=True)
        self.pairs: dict[str, Pair] = {}
        self.latency: tuple[float, float] | None = None
        """An honest client's p99 before and during the last attack."""
        self.source = source
        self._made: list[Connection] = []
        self._count = 0

    def start(self, needed: set[str]) -> None:
        """Start the brokers that are needed, OPEN or KEYS."""
        brokers = [self.broker_of(where) for where in sorted(needed)]
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.ready()
        if KEYS in needed:
            self.server_key = self.keyed.server_key()
            for name, (role, allow) in KEY_RULES.items():
                self.store_key(role, name, allow)
            for name, (role, _) in KEY_RULES.items():
                self.await_key(role, name)

    def store_key(self, role: str, name: str, allow: str = "") -> None:
        self.pairs[name] = pair = new_pair()
        self.keyed.store_key(role, name, pair.public, allow)

    def add_key(self, role: str, name: str) -> None:
        self.store_key(role, name)
        self.await_key(role, name)

    def await_key(self, role: str, name: str) -> None:
        end = time.monotonic() + KEY_SECONDS
        while time.monotonic() < end:
            probe = self.with_key(name, role)
            if probe.manage("whoami", seconds=1.0).command == "MANAGEMENTREP":
                return
            time.sleep(0.2)
        raise NotJudged(f"a stored key of {name} is not accepted")

    def stop(self) -> None:
        self.close_connections()
        for broker in (self.open, self.keyed):
            broker.kill()

    def unique(self, word: str) -> str:
        self._count += 1
        return f"{word}-{self._count}"

    def raw(self, socket: str = "frontend", identity: bytes = b"", socket_type: bytes = b"DEALER") -> Raw:
        """A connection to the broker without keys."""
        made = Raw(self.open.endpoints[socket], identity, socket_type)
        self._made.append(made)
        return made

    def with_key(self, name: str, socket: str = "frontend", pair: Pair | None = None, **more: Any) -> Keyed:
        """A connection to the broker that requires keys."""
        key = pair or self.pairs[name]
        made = Keyed(self.keyed.endpoints[socket], key, more.pop("server_key", self.server_key), **more)
        self._made.append(made)
        return made

    def broker_of(self, where: str) -> Broker:
        return self.keyed if where == KEYS else self.open

    def honest(self, where: str) -> bool:
        """True if a new honest client is answered."""
        made = self.with_key("alice") if where == KEYS else self.raw()
        return made.ping()

    def close_connections(self) -> None:
        for made in self._made:
            made.close()
        self._made.clear()

    @contextlib.contextmanager
    def measured(self, seconds: float) -> Iterator[subprocess.Popen[str]]:
        """An honest client and backend in a process of their own, for so long."""
        arguments = [sys.executable, "-m", "evidence.honest", self.open.endpoints["frontend"]]
        arguments += [self.open.endpoints["backend"], str(seconds)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def run_attack(site: Site, one: Attack, campaign: Campaign) -> AttackRecord:
    """One attack, and whether the broker and its other clients noticed."""
    began = time.monotonic()
    record = AttackRecord(one.name, one.promise, one.where, "")
    broker = site.broker_of(one.where)
    site.latency = None
    try:
        record.answer = one.run(site)
    except Succeeded as reason:
        record.succeeded = record.answer = str(reason)
    except NotJudged as reason:
        record.unjudged = str(reason)
    except Exception as error:  # an attack that cannot be judged is not one that failed
        record.unjudged = f"{type(error).__name__}: {error}"
    record.latency = site.latency
    site.close_connections()
    after = check_broker(site, broker, one.where)
    if after:
        campaign.extra.append(Violation("WIRE-3", f"after {one.name}: {after}"))
        if not broker.running:
            broker.kill()
            broker.start()
    site.close_connections()
    record.seconds = round(time.monotonic() - began, 2)
    return record


def check_broker(site: Site, broker: Broker, where: str) -> str:
    """What an attack did to the broker; empty: nothing."""
    if not broker.running:
        return f"the broker ended with {broker.status}: {broker.tail()[-200:]}"
    if broker.bad_lines():
        line = broker.bad_lines()[0]
        broker.log.write_text("")
        return f"the broker logged: {line}"
    if broker.memory_bytes() > MAX_MEMORY_BYTES:
        return f"the broker uses {broker.memory_bytes() // 1_048_576} MiB"
    try:
        return "" if site.honest(where) else "an honest client is not answered"
    except OSError as error:
        return f"an honest client cannot connect: {error}"
