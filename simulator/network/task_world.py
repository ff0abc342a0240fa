"""The task part of a simulated network: makes the clients and workers of a plan and drives their activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.tasks.core import delayed_tasks, dependencies, method_queues
from simulator.invariants.tasks import TaskChecks
from simulator.network.clients import BackendNode, FrontendNode
from simulator.network.subscriptions import Announcements
from simulator.network.task_clients import ClientSurroundings, RawClient, TaskCaller
from simulator.network.task_records import METHODS, TaskRecord, TaskRecords
from simulator.network.task_workers import PullNode, TaskExecutor, TaskSurroundings
from simulator.plan import Offer, Plan, TaskPlan

if TYPE_CHECKING:
    from simulator.network.world import World

FIRST_SECONDS: Final = 5.0
LAST_SECONDS: Final = 60.0
"""How long before the end the last tasks are submitted."""
DEADLY_SECONDS: Final = 10.0
"""How long after healing tasks may still kill their worker."""
LIMITED: Final = METHODS[0]
WINDOWS: Final = (
    (method_queues, "WINDOW_TASKS", method_queues.WINDOW_TASKS),
    (delayed_tasks, "SCHEDULE_TASKS", delayed_tasks.SCHEDULE_TASKS),
    (dependencies, "ROUND_TASKS", dependencies.ROUND_TASKS),
    (dependencies, "PAGE_TASKS", dependencies.PAGE_TASKS),
)
"""The production values of in-memory windows and page sizes."""


class TaskWorld:
    def __init__(self, world: World, plan: Plan, tasks: TaskPlan) -> None:
        self._world = world
        self._plan = tasks
        self.rng = world.rng_of("tasks")
        self.records = TaskRecords(world.rng_of("task records"), plan.strain)
        check = TaskChecks(world.agenda, self.records, plan)
        world.check.of_tasks = check
        self.announcements = Announcements(
            world.agenda, world.broker, world.rng_of("announcements"), tasks.announcements_lost
        )
        narrow(tasks.window)
        workers = TaskSurroundings(world.agenda, self.records, check, self._is_deadly, self._died)
        places = world.broker.config.endpoints()
        for number, backend in enumerate(world.backends):
            self._equip(backend, workers, tasks.prefetch[number], tasks.bunch[number])
        self.nodes = [
            PullNode(
                workers,
                world.connect,
                world.check,
                self.announcements,
                world.route(f"node-{number}"),
                world.rng_of(f"node {number}"),
                places.backend,
                METHODS,
                plan.interval,
            )
            for number in range(tasks.pull_nodes)
        ]
        check.nodes = {node.name for node in self.nodes}
        clients = ClientSurroundings(
            world.agenda, self.records, check, (*plan.services, *METHODS), lambda: world.healed and not plan.calm
        )
        for number, frontend in enumerate(world.frontends):
            frontend.tasks = TaskCaller(clients, frontend, world.rng_of(f"task caller {number}"))
        self.raw = [
            RawClient(
                clients,
                world.connect,
                world.check,
                world.route(f"raw-{number}"),
                world.rng_of(f"raw client {number}"),
                places.frontend,
            )
            for number in range(tasks.raw_clients)
        ]
        self.clients: list[FrontendNode | RawClient] = [*world.frontends, *self.raw]

    def begin(self) -> None:
        agenda = self._world.agenda
        for node in self._others:
            agenda.at(self.rng.random() * 3, node.start)
        agenda.at(FIRST_SECONDS - 1.0, self._limit)
        agenda.at(FIRST_SECONDS, self._submit)

    def heal(self) -> None:
        """Restarts everything that is down."""
        for node in self._others:
            if not node.up:
                node.start()
            elif node.link is not None and node.link.stalled:
                node.link.resume()

    @property
    def _others(self) -> list[PullNode | RawClient]:
        return [*self.nodes, *self.raw]

    @property
    def count(self) -> int:
        """Returns the number of connections of these clients."""
        return len(self.nodes) + len(self.raw)

    def submit(self) -> None:
        """Submits a task from a random client; sometimes queries or cancels one."""
        client = self.rng.choice(self.clients)
        if client.link is None or not client.up or client.link.stalled:
            return
        caller: Any = client.tasks if isinstance(client, FrontendNode) else client
        caller.submit()
        kind = self.rng.random()
        record = self._some(client.name)
        if record is not None and kind < 0.25:
            caller.query_status(record)
        elif record is not None and kind < 0.30:
            caller.cancel(record)

    def kill_node(self, silent: bool, back_after: float) -> None:
        """Kills a pulling node and restarts it."""
        node = self.rng.choice(self.nodes)
        node.kill(silent)
        self._world.agenda.after(back_after, self._revive, node)

    def vanish_client(self, silent: bool, back_after: float) -> None:
        """Kills a JSON-RPC client and restarts it."""
        if self.raw:
            client = self.rng.choice(self.raw)
            client.vanish(silent)
            self._world.agenda.after(back_after, self._revive, client)

    def _equip(self, backend: BackendNode, workers: TaskSurroundings, prefetch: int, bunch: int) -> None:
        rng = self._world.rng_of(f"hands of {backend.name}")
        services, slots, each = backend.offer
        if (rng.random() < 0.6 or backend.name == "backend-0") and LIMITED not in services:
            backend.offer = backend.offered = Offer((*services, LIMITED), slots, (*each, 1) if each else ())
            backend.most_offers = [backend.offer]
        backend.prefetch = prefetch
        backend.new_executor = lambda: TaskExecutor(workers, backend, rng, bunch)

    def _some(self, client: str) -> TaskRecord | None:
        own = self.records.by_client.get(client, ())
        known = [each for each in own[-15:] if each.accepted is not None and each.id and not each.void]
        return self.rng.choice(known) if known else None

    def _limit(self) -> None:
        """Sets the limit of the limited method, repeated until it succeeds."""
        world = self._world
        policy = world.broker.broker.state.policies.get(LIMITED) if world.broker.up else None
        if policy is None or policy.concurrency is None:
            changes = {f"services.{LIMITED}": {"name": LIMITED, "concurrency": self._plan.concurrency}}
            world.admin.manage("patch_config", command="patch_config", set=changes)
        world.agenda.after(20.0, self._limit)

    def _submit(self) -> None:
        if self._world.agenda.now < self._world.plan.seconds - LAST_SECONDS:
            self.submit()
            self._world.agenda.after(self.rng.expovariate(1 / self._plan.submit_every), self._submit)

    def _is_deadly(self) -> bool:
        plan = self._world.plan
        return not self._world.healed or self._world.agenda.now < plan.heal_at + DEADLY_SECONDS

    def _died(self, node: BackendNode | PullNode) -> None:
        """Kills a worker whose task crashes it, and restarts it later."""
        if not node.up:
            return
        self._world.diary.note(f"a task kills {node.name}")
        if isinstance(node, PullNode):
            node.kill(silent=False)
        elif node.link is not None:
            node.link.kill(silent=False)
        self._world.agenda.after(self.rng.uniform(0.05, 3.0), self._revive, node)

    def _revive(self, node: BackendNode | PullNode | RawClient) -> None:
        if not node.up:
            node.start()


def narrow(window: int) -> None:
    """Sets smaller windows than in production, so that even few tasks fill them; 0: the production values."""
    for module, name, usual in WINDOWS:
        setattr(module, name, window or usual)
