"""A fleet of simulated agents over real TLS, each with a certificate of its own: what Helen is measured with.

Run as `python -m benchmarks.fleet FOLDER PORT COUNT`: FOLDER holds ca.pem and agents/<number>.pem (certificate and
key). It connects COUNT agents and obeys words on its standard input, answering each with one line of JSON:
`connect` (until all are accepted), `report RATE SECONDS` (so many reports a second over all agents, paced, until every
one is acknowledged), `idle SECONDS`, `back` (until all that were lost are connected again, with full jitter).
"""

from __future__ import annotations

import json
import random
import resource
import select
import socket
import ssl
import sys
import time
from pathlib import Path

HELLO = b"hello 2 fleet\n"
CONNECTING, SHAKING, GREETING, UP, DOWN = range(5)
MAX_SHAKING = 256
"""Handshakes under way: as many machines would not wait for each other, but they share one core here."""


class Agent:
    """One connection; reports count from 1 on each, and over all of them for its spool."""

    __slots__ = (
        "acked",
        "buffer",
        "context",
        "number",
        "sent",
        "sequence",
        "socket",
        "spool_n",
        "state",
        "unacked",
        "when",
    )

    def __init__(self, number: int, context: ssl.SSLContext) -> None:
        self.number = number
        self.context = context
        self.state = DOWN
        self.socket: ssl.SSLSocket | None = None
        self.buffer = b""
        self.sequence = 0
        self.acked = 0
        self.spool_n = 0
        self.when = 0.0
        self.unacked: list[tuple[int, bytes]] = []
        self.sent = 0


class Fleet:
    def __init__(self, folder: Path, port: int, count: int) -> None:
        self.port = port
        self.epoll = select.epoll()
        self.agents = [Agent(number, self.context(folder, number)) for number in range(count)]
        self.by_fd: dict[int, Agent] = {}
        self.shaking = 0
        self.up = 0
        self.queue: list[Agent] = []
        self.spool = f"{random.SystemRandom().getrandbits(64):016x}"
        self.acks = 0
        self.pings = 0
        self.errors: dict[str, int] = {}
        self.failures: dict[int, int] = {}

    @staticmethod
    def context(folder: Path, number: int) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False
        made.load_verify_locations(folder / "ca.pem")
        made.load_cert_chain(folder / "agents" / f"{number}.pem")
        return made

    def dial(self, agent: Agent) -> None:
        plain = socket.socket()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            plain.connect(("127.0.0.1", self.port))
        except BlockingIOError:
            pass
        agent.state = CONNECTING
        self.shaking += 1
        agent.socket = agent.context.wrap_socket(plain, do_handshake_on_connect=False)
        agent.buffer = b""
        agent.sequence = agent.acked = 0
        agent.when = time.monotonic() + 15
        self.by_fd[agent.socket.fileno()] = agent
        self.epoll.register(agent.socket.fileno(), select.EPOLLOUT | select.EPOLLIN)

    def lose(self, agent: Agent, why: str) -> None:
        self.errors[why] = self.errors.get(why, 0) + 1
        if agent.state in (CONNECTING, SHAKING, GREETING):
            self.shaking -= 1
        elif agent.state == UP:
            self.up -= 1
        if agent.socket is not None:
            self.by_fd.pop(agent.socket.fileno(), None)
            self.epoll.unregister(agent.socket.fileno())
            agent.socket.close()
        agent.socket = None
        agent.state = DOWN
        tries = self.failures.get(agent.number, 0)
        self.failures[agent.number] = tries + 1
        agent.when = time.monotonic() + random.uniform(0, min(60.0, 2.0**tries))
        self.queue.append(agent)

    def turn(self, wait: float) -> None:
        """What came, and a few more handshakes."""
        now = time.monotonic()
        if self.queue and self.shaking < MAX_SHAKING:
            later = []
            for agent in self.queue:
                if agent.when <= now and self.shaking < MAX_SHAKING:
                    self.dial(agent)
                else:
                    later.append(agent)
            self.queue = later
        for fd, _ in self.epoll.poll(wait, 1_000):
            agent = self.by_fd.get(fd)
            if agent is not None:
                self.handle(agent)

    def handle(self, agent: Agent) -> None:
        link = agent.socket
        assert link is not None
        try:
            if agent.state == CONNECTING:
                error = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    self.lose(agent, f"connect {error}")
                    return
                agent.state = SHAKING
            if agent.state == SHAKING:
                link.do_handshake()
                agent.state = GREETING
                link.send(HELLO)
                self.epoll.modify(link.fileno(), select.EPOLLIN)
            while True:
                chunk = link.recv(65_536)
                if not chunk:
                    self.lose(agent, "closed")
                    return
                self.take(agent, chunk)
        except ssl.SSLWantReadError:
            if agent.state == SHAKING:
                self.epoll.modify(link.fileno(), select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self.epoll.modify(link.fileno(), select.EPOLLIN | select.EPOLLOUT)
        except OSError as error:
            self.lose(agent, type(error).__name__)

    def take(self, agent: Agent, chunk: bytes) -> None:
        data = agent.buffer + chunk if agent.buffer else chunk
        while (end := data.find(b"\n")) >= 0:
            line = data[:end]
            word = line[: line.find(b" ")] if b" " in line else line
            if word == b"schedule":
                length = int(line.rpartition(b" ")[2])
                if len(data) < end + 1 + length + 1:
                    break
                end += length + 1
            elif word == b"ack":
                self.hear_ack(agent, int(line[4:]))
            elif word == b"ping":
                self.pings += 1
                assert agent.socket is not None
                agent.socket.send(b"pong " + line[5:] + b"\n")
            elif word == b"accepted":
                agent.state = UP
                self.shaking -= 1
                self.up += 1
                self.failures.pop(agent.number, None)
                for n, body in agent.unacked:
                    self.send(agent, n, body)
            elif word == b"error":
                self.errors[line.decode()] = self.errors.get(line.decode(), 0) + 1
            data = data[end + 1 :]
        agent.buffer = data

    def hear_ack(self, agent: Agent, sequence: int) -> None:
        fresh = sequence - agent.acked
        agent.acked = sequence
        del agent.unacked[:fresh]
        self.acks += fresh

    def send(self, agent: Agent, n: int, body: bytes) -> None:
        agent.sequence += 1
        assert agent.socket is not None
        message = b"report %d load %d\n%b\n" % (agent.sequence, len(body), body)
        try:
            if agent.socket.send(message) != len(message):
                raise RuntimeError("a short write: the fleet is not made for that")
        except ssl.SSLWantWriteError as error:
            raise RuntimeError("Helen does not read") from error

    def report(self, agent: Agent) -> None:
        agent.spool_n += 1
        body = (
            b'{"state":"ok","message":"0.42, 0.40, 0.38 over 1, 5 and 15 minutes","metrics":['
            b'{"name":"load1","value":0.42,"warn":4.0,"crit":8.0,"min":0.0},{"name":"load5","value":0.4},'
            b'{"name":"load15","value":0.38}],"started":%.3f,"seconds":0.0001,'
            b'"spool":"%b-%d","n":%d,"age":0.001,"sent":%.3f}'
        ) % (time.time(), self.spool.encode(), agent.number, agent.spool_n, time.time())
        agent.unacked.append((agent.spool_n, body))
        agent.sent += 1
        if agent.state == UP:
            self.send(agent, agent.spool_n, body)

    def connect(self) -> dict[str, object]:
        started = time.monotonic()
        self.queue = [agent for agent in self.agents if agent.state == DOWN]
        while self.up < len(self.agents):
            self.turn(0.01)
            if time.monotonic() - started > 300:
                break
        return {"up": self.up, "seconds": time.monotonic() - started, "errors": self.errors}

    def back(self) -> dict[str, object]:
        started = time.monotonic()
        while self.up == len(self.agents) and time.monotonic() - started < 30:
            self.turn(0.01)
        lost = time.monotonic()
        while self.up < len(self.agents) and time.monotonic() - lost < 120:
            self.turn(0.01)
        return {"up": self.up, "seconds": time.monotonic() - lost, "errors": self.errors}

    def run_reports(self, rate: float, seconds: float) -> dict[str, object]:
        """Paced: what is late is sent late, and the rate that was held is told."""
        before = self.acks
        started = time.monotonic()
        sent, total, place = 0, int(rate * seconds), 0
        latest = 0.0
        while sent < total:
            due = min(total, int((time.monotonic() - started) * rate) + 1)
            latest = max(latest, (due - sent) / rate)
            while sent < due and sent < total:
                self.report(self.agents[place])
                place = (place + 1) % len(self.agents)
                sent += 1
                if sent % 200 == 0:
                    break
            self.turn(0.0 if sent < due else 0.001)
        until = time.monotonic() + 60
        while self.acks - before < total and time.monotonic() < until:
            self.turn(0.01)
        took = time.monotonic() - started
        return {"sent": sent, "acked": self.acks - before, "seconds": took, "rate": sent / took, "behind": latest}

    def idle(self, seconds: float) -> dict[str, object]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn(0.05)
        return {"up": self.up, "pings": self.pings}


def main() -> None:
    folder, port, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fleet = Fleet(folder, port, count)
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["connect"]:
                answer = fleet.connect()
            case ["back"]:
                answer = fleet.back()
            case ["idle", seconds]:
                answer = fleet.idle(float(seconds))
            case ["report", rate, seconds]:
                answer = fleet.run_reports(float(rate), float(seconds))
            case _:
                answer = {"error": f"what is {line!r}?"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
