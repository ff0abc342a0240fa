"""Any weather: brokers are killed, put to sleep and cut apart, while clients come and go and administrators work.

Lives here: the story of one seed, and what must hold in it and at its end. Never here: how many seeds there are.
"""

from __future__ import annotations

import random

from scale0.transport.core.sockets import BACKEND
from tests.unit.broker.network import Client, Network, Node, place_of

NAMES = "abcde"
SERVICES = ("paint", "glue", "saw")
SETTLED_SECONDS = 75.0
"""By then every table has been told whole once more."""


class Broken(AssertionError):
    """A promise did not hold."""


def insist(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


class Weather:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.network = Network(seed)
        first = place_of("a")
        self.nodes = [self.network.add("a", config_service=True)]
        self.nodes += [
            self.network.add(name, peers=(first,), config_service=self.dice.random() < 0.5) for name in NAMES[1:]
        ]
        self.made: set[tuple[int, str]] = set()
        self.highest = {node.name: (0, "") for node in self.nodes}
        self.workers: list[tuple[Node, Client]] = []
        self.told: dict[tuple[int, str, str], int] = {}
        """The newest version of each row that was seen, by table."""
        self.tables: list[object] = []
        """All tables that ever were: so that no number is used twice."""

    def run(self, steps: int = 60) -> None:
        """All of it; raises Broken."""
        self.network.run(5)
        self.network.echo = 0.1
        for _ in range(steps):
            self._happen(self.dice.choice(self.nodes))
            self.network.run(self.dice.random() * 3)
            self._never_older()
            self._nobody_comes_back()
        self._clear_up(10)
        self._quarrel()
        self._clear_up(SETTLED_SECONDS)
        self._agree()
        self._know_each_other()
        self._tell_the_truth()

    def _happen(self, node: Node) -> None:
        dice, network = self.dice, self.network
        awake = node.up and not node.frozen and node.broker.state.state == "active"
        match dice.randrange(9):
            case 0:
                node.kill() if node.up else node.start()
                self.workers = [(home, worker) for home, worker in self.workers if home is not node]
            case 1:
                node.frozen = not node.frozen
            case 2:
                network.cut(tuple(dice.sample(NAMES, 2)), both=dice.random() < 0.5)  # type: ignore[arg-type]
            case 3:
                network.heal()
            case 4 | 5 if awake:
                self._change(node)
            case 6 | 7 if awake:
                worker = node.client(BACKEND)
                worker.ready(f"w{worker.number}", dice.choice(SERVICES))
                self.workers.append((node, worker))
            case 8 if self.workers:
                home, worker = self.workers.pop(dice.randrange(len(self.workers)))
                if home.up and not home.frozen:
                    worker.say("DISCONNECT", {})
                else:
                    self.workers.append((home, worker))

    def _never_older(self) -> None:
        for node in self.nodes:
            if node.up and node.broker.state.state == "active":
                insist(node.rank >= self.highest[node.name], f"{node.name} went back to an older configuration")
                self.highest[node.name] = node.rank

    def _nobody_comes_back(self) -> None:
        """Of each client the newest that was told is what counts; what was told before never counts again."""
        for node in self.nodes:
            for peer in node.broker.peers.by_name.values() if node.up else ():
                self.tables.append(peer.table)
                for key, row in peer.table.rows.items():
                    place = (id(peer.table), *key)
                    insist(row.version >= self.told.get(place, 0), f"{node.name} believes an old row of {key}")
                    self.told[place] = row.version

    def _quarrel(self) -> None:
        """Two halves, each with a change of its own: of the same version, as often as not."""
        halves = NAMES[:2], NAMES[2:]
        self.network.cut(*((one, other) for one in halves[0] for other in halves[1]))
        for half in halves:
            mayors = [node for node in self.nodes if node.name in half and node.config.config_service]
            for _ in range(self.dice.randint(1, 2) if mayors else 0):
                self._change(self.dice.choice(mayors))
                self.network.run(self.dice.choice((0, 2)))
        self.network.run(4)

    def _change(self, node: Node) -> None:
        code, said = node.manage("patch_config", set={"default_heartbeat_interval": 1 + self.dice.random() / 10})
        self.made |= {(said["version"], said["hash"])} if code == 200 else set()

    def _clear_up(self, seconds: float) -> None:
        self.network.heal()
        self.network.echo = 0.0
        for node in self.nodes:
            node.frozen = False
            if not node.up:
                node.start()
        for _ in range(int(seconds)):
            self.network.run(1)
            for home, worker in self.workers:
                worker.say("HEARTBEAT", {"time": home.now.wall, "config_version": home.rank[0]})
            self._never_older()
            self._nobody_comes_back()

    def _agree(self) -> None:
        insist(len({node.rank for node in self.nodes}) == 1, "they do not agree on one configuration")
        insist(self.nodes[0].rank >= max(self.made, default=(0, "")), "a configuration that was made is newer")

    def _know_each_other(self) -> None:
        for node in self.nodes:
            seen = {peer.identity: peer.shown for peer in node.broker.peers.by_name.values()}
            wanted = {other.name: "active" for other in self.nodes if other is not node}
            insist(seen == wanted, f"{node.name} knows {seen}")

    def _tell_the_truth(self) -> None:
        """What each one knows of the others' clients is what they have."""
        for node in self.nodes:
            members = node.broker.members.by_name
            truth = {key[1] for key, member in members.items() if member.joined and key[0] == BACKEND}
            offered = {
                name for key, one in members.items() if key[0] == BACKEND and one.joined for name in one.services
            }
            for other in self.nodes:
                known = set(other.broker._cluster.forwarding._directory.entries[node.name].services)
                insist(known == offered, f"{other.name} believes that {node.name} offers {known}, and it is {offered}")
                if other is not node:
                    rows = other.broker.peers.by_name[node.name].table.rows
                    told = {key[1] for key, row in rows.items() if key[0] == BACKEND and not row.gone}
                    insist(told == truth, f"{other.name} believes of {node.name}: {told}, and it has {truth}")
