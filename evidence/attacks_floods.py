"""Floods, while an honest client's latency is measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import msgspec

from evidence import raw
from evidence.raw import MAGIC, Raw
from evidence.site import ADMIN, PASSWORD, NotJudged, Site, attack, given, must

FLOOD_SECONDS = 2.0
CALM_SECONDS = 1.5
CROWD = 10
SERVED_SECONDS = 2.0
MAX_TOPICS = 20_000
TOO_MANY_TOPICS = 10_000
"""More than a subscriber may have: with their sizes, half of them are."""
TOPICS_AT_ONCE = 500
TOPICS_SECONDS = 10.0
"""Within which a subscriber with too many must be disconnected."""


def p99_of(process: subprocess.Popen[str]) -> float:
    """What the measuring process printed."""
    printed, _ = process.communicate(timeout=60)
    if process.returncode != 0 or not printed.strip():
        raise NotJudged("the honest client that is measured ended")
    return float(printed)


def measured(site: Site, flood: Callable[[float], str]) -> str:
    """Run a flood until a moment; the honest p99 before and during it is left with the site."""
    with site.measured(CALM_SECONDS) as calm:
        before = p99_of(calm)
    with site.measured(FLOOD_SECONDS) as process:
        text = flood(time.monotonic() + FLOOD_SECONDS + 0.5)
        during = p99_of(process)
    site.latency = (before, during)
    return f"{text}; honest p99 {during * 1000:.0f} ms, calm {before * 1000:.0f} ms"


def flood_of(site: Site, socket: str, command: str, options: dict[str, object]) -> str:
    """Ten connections repeat one message; each is ignored or answered, and nobody else waits."""
    data = raw.message([MAGIC, command.encode(), json.dumps(options).encode()]) * 100
    crowd: list[Raw] = [site.raw(socket) for _ in range(CROWD)]

    def flood(end: float) -> str:
        sent = 0
        while time.monotonic() < end:
            for made in crowd:
                try:
                    made.socket.settimeout(0.05)
                    made.socket.sendall(data)
                    sent += 100
                except OSError:
                    pass
        return f"{sent} sent"

    text = measured(site, flood)
    left = served(crowd)
    must(left == 0, f"{left} of {CROWD} connections that sent {command} without end are still served")
    return f"{text}; all {CROWD} senders ignored"


def served(crowd: list[Raw]) -> int:
    """How many of these connections still get answers to management; what they were sent before is dropped."""
    asked = []
    for made in crowd:
        try:
            made.socket.settimeout(2.0)
            made.say("MANAGEMENTREQ", {"command": "whoami", "id": "after"})
            asked.append(made)
        except OSError:
            pass
    end = time.monotonic() + SERVED_SECONDS
    count = 0
    for made in asked:
        try:
            found = made.hear_one_of("MANAGEMENTREP", seconds=max(0.05, end - time.monotonic()))
        except OSError:
            found = None
        count += found is not None
    return count


@attack("LIVE-5", slow=True)
def flood_of_heartbeats(site: Site) -> str:
    return flood_of(site, "backend", "HEARTBEAT", {"time": 1.0})


@attack("WIRE-3", slow=True)
def flood_of_ready(site: Site) -> str:
    return flood_of(site, "backend", "READY", {"services": ["a"], "config_version": 1})


@attack("WIRE-3", slow=True)
def flood_of_checkconfig(site: Site) -> str:
    return flood_of(site, "frontend", "CHECKCONFIG", {"config_type": "xml"})


@attack("MGMT-2", slow=True)
def flood_of_passwords(site: Site) -> str:
    """Wrong passwords of many connections slow nobody down and lock nobody out."""
    crowd = [site.raw() for _ in range(CROWD)]
    options = {"command": "whoami", "auth_id": ADMIN, "auth_password": "wrong", "id": 1}
    data = raw.message([MAGIC, b"MANAGEMENTREQ", json.dumps(options).encode()])

    def flood(end: float) -> str:
        sent = 0
        while time.monotonic() < end:
            for made in crowd:
                made.socket.settimeout(0.05)
                try:
                    made.socket.sendall(data)
                    sent += 1
                except OSError:
                    pass
            time.sleep(0.005)
        return f"{sent} sent"

    text = measured(site, flood)
    right = site.raw().manage("whoami", auth_id=ADMIN, auth_password=PASSWORD, seconds=30)
    for _ in range(20):
        if right.code != 429:
            break
        time.sleep(0.5)
        right = site.raw().manage("whoami", auth_id=ADMIN, auth_password=PASSWORD, seconds=30)
    must(right.code == 200, f"the right password was answered with {right.text}")
    return text


@attack("WIRE-5", slow=True)
def flood_of_subscriptions(site: Site) -> str:
    """A subscriber with topics without end: memory stays bounded, and others receive what is published."""
    made = Raw(site.open.endpoints["task_pub"], socket_type=b"SUB")
    before = site.open.memory_bytes()
    topics = 0

    def subscribe(end: float) -> bool:
        """False once the broker has closed the connection; a send that only takes long is not that."""
        nonlocal topics
        while time.monotonic() < end and topics < MAX_TOPICS:
            data = b"".join(
                raw.frame(b"\x01" + b"t%d" % n + b"x" * 200) for n in range(topics, topics + TOPICS_AT_ONCE)
            )
            made.socket.settimeout(max(0.1, end - time.monotonic()))
            try:
                made.socket.sendall(data)
            except TimeoutError:
                return True
            except OSError:
                return False
            topics += TOPICS_AT_ONCE
        return True

    def flood(end: float) -> str:
        subscribe(end)
        return ""

    try:
        text = measured(site, flood)
        given(
            topics >= TOO_MANY_TOPICS or not subscribe(time.monotonic() + TOPICS_SECONDS), "topics are sent too slowly"
        )
        closed = raw.closed_within(made.socket, TOPICS_SECONDS) is not None
    finally:
        made.close()
    grown = (site.open.memory_bytes() - before) // 1_048_576
    must(closed, f"a subscriber that sent {topics} topics is still connected")
    must(grown < 100, f"{topics} subscriptions made the broker grow by {grown} MiB")
    return f"closed after at most {topics} topics; {text.partition('; ')[2]}; the broker grew by {grown} MiB"


@attack("ZMTP-2", slow=True)
def silent_connections(site: Site) -> str:
    """Two hundred connections that never finish their handshake."""
    made = [raw.dial(site.open.endpoints["frontend"]) for _ in range(200)]

    def wait(end: float) -> str:
        began = time.monotonic()
        honest = site.raw().ping()
        must(honest, "nobody is served beside silent connections")
        took = time.monotonic() - began
        time.sleep(max(0.0, end - time.monotonic()))
        return f"a newcomer is served after {took * 1000:.0f} ms"

    try:
        text = measured(site, wait)
        must(raw.closed_within(made[0], 9.0) is not None, "a silent connection is kept")
    finally:
        for one in made:
            one.close()
    return text


@attack("CURVE-18", slow=True)
def batch_of_ten_thousand(site: Site) -> str:
    """A BATCH of the largest size is processed in many turns."""
    body = msgspec.msgpack.encode([["REQUEST", {"service": "scale0.clients", "id": n}] for n in range(1_900)])

    def flood(end: float) -> str:
        count = 0
        while time.monotonic() < end:
            made = site.raw()
            made.send([MAGIC, b"BATCH", b"", body])
            made.hear(2.0)
            made.close()
            count += 1
        return f"{count} batches"

    return measured(site, flood)
