"""Agents that another Helen has now, and what was handed to her: kept for a while, should it not have arrived.

Lives here: `AgentBundle`, all that belongs to one agent; `MigratedAgent`, one that went; `MigratedAgents`, all of them
with their rows. Never here: when an agent goes or comes (`helen_handover`). Invariants: a bundle is answered until it
is confirmed, and always with the same id, so that it counts once; what nobody confirmed is taken back, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.monitoring.helen.core.agents import MAX_MERGED, MAX_MERGED_CHARS, Agent, StoredAgent, read_kept
from scale0.monitoring.helen.core.deduplication import MAX_SPOOLS, Handed, SeenReports, is_spool, read_foreign
from scale0.monitoring.helen.core.evaluation_bundle import EvaluationBundle, OpenedEvaluation, unpack
from scale0.storage.check_rows import DropAgent, PutAgent

RETURN_SECONDS: Final = 120.0
"""What nobody confirmed for so long is ours again: several times as long as it takes to offer it."""
KEPT_SECONDS: Final = 3_600.0
"""How long a bundle is kept after it was handed over: should the other Helen be gone, it is better than nothing."""
MAX_MOVED: Final = 20_000
"""Bundles that are kept; more, and those that were confirmed first go."""
MAX_BUNDLE_BYTES: Final = 2 * 1024 * 1024
"""Of rows in one bundle: it must fit into a message. A longer one travels without its messages."""


class AgentBundle(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, as one Helen hands it to another."""

    id: str
    """Of this handover: it counts once."""
    agent: bytes
    """The body of its row."""
    spools: list[Handed] = []
    watch: EvaluationBundle = EvaluationBundle()


class OpenedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The same, read and believed."""

    id: str
    kept: StoredAgent
    spools: list[tuple[str, SeenReports, int]]
    watch: OpenedEvaluation

    @property
    def newest(self) -> float:
        """When its last result was."""
        return max((state.at for state in self.watch.states.values()), default=0.0)


def open_bundle(bundle: AgentBundle, identity: str) -> OpenedBundle:
    """What another Helen sent. ValueError: something of it cannot be true, and so nothing counts."""
    try:
        kept = read_kept(bundle.agent)
        ids = (bundle.id, *kept.merged)
        if len(ids) > MAX_MERGED + 1 or not all(0 < len(each) <= MAX_MERGED_CHARS for each in ids):
            raise ValueError("that is no id of a handover")
        if len(bundle.spools) > MAX_SPOOLS or not all(is_spool(name) for name, _, _ in bundle.spools):
            raise ValueError("these are no spools")
        spools = [(name, read_foreign(seen), heard_us) for name, seen, heard_us in bundle.spools]
        return OpenedBundle(id=bundle.id, kept=kept, spools=spools, watch=unpack(bundle.watch, identity))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ValueError(f"this is no agent as we know it: {error}") from None


class MigratedAgent(msgspec.Struct):
    """An agent that another Helen has."""

    to: str
    at: float
    """When it went, by the wall clock."""
    bundle: AgentBundle
    confirmed: bool = False
    """She has said that she has it."""


class _Row(msgspec.Struct, frozen=True):
    moved: MigratedAgent


_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(MigratedAgent).decode


class MigratedAgents:
    """All that went."""

    __slots__ = ("_all", "_confirmed")

    def __init__(self) -> None:
        self._all: dict[str, MigratedAgent] = {}
        self._confirmed: dict[str, None] = {}
        """In the order in which they were."""

    def __len__(self) -> int:
        return len(self._all)

    def load(self, rows: Mapping[str, bytes]) -> Iterable[str]:
        """What the store remembers; who they are."""
        for identity, body in rows.items():
            try:
                self._all[identity] = _from_json(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of agent {identity}, who moved, is damaged: {error}") from error
        self._confirmed = {identity: None for identity, moved in self._all.items() if moved.confirmed}
        return self._all

    def get(self, identity: str) -> MigratedAgent | None:
        """What went, if it did."""
        return self._all.get(identity)

    def offered(self) -> list[str]:
        """Who went, and nobody has said that they arrived."""
        return [identity for identity, moved in self._all.items() if not moved.confirmed]

    def put(self, identity: str, moved: MigratedAgent, step: Effects) -> None:
        """It goes; its row is this from here on."""
        self._confirmed.pop(identity, None)
        self._all[identity] = moved
        self._write(identity, moved, step)

    def confirm(self, identity: str, step: Effects) -> None:
        """It has arrived."""
        moved = self._all[identity]
        if moved.confirmed:
            return
        moved.confirmed = True
        self._confirmed[identity] = None
        self._write(identity, moved, step)
        if len(self._all) > MAX_MOVED:
            self.drop(next(iter(self._confirmed)), step)

    def pop(self, identity: str) -> MigratedAgent | None:
        """It is here again: whoever takes it writes its row."""
        self._confirmed.pop(identity, None)
        return self._all.pop(identity, None)

    def drop(self, identity: str, step: Effects) -> None:
        """Nobody needs it any more."""
        if self.pop(identity) is not None:
            step.write(DropAgent(identity))

    def _write(self, identity: str, moved: MigratedAgent, step: Effects) -> None:
        step.write(PutAgent(identity, _to_json(_Row(moved))))


def bundle_of(agent: Agent, id_: str, spools: list[Handed], watch: EvaluationBundle | None) -> AgentBundle:
    """All that belongs to an agent, short enough to travel."""
    carried = watch or EvaluationBundle()
    if carried.size > MAX_BUNDLE_BYTES:
        carried = carried.shorten()
    return AgentBundle(id=id_, agent=agent.row().body, spools=spools, watch=carried)
