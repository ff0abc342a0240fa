"""Tasks of native backends: TASKSTATUS and TASKSDONE in, TASKSOK out (PROTOCOL 2.3). Invariants: a result is
acknowledged only after it is stored; every entry is acknowledged or refused, so that the backend can discard it, or the
backend is asked to send it again; a late result is refused and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from scale0.broker.core.connections import Connection
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, has_slow_numbers
from scale0.storage.task_rows import FAILED, FINISHED
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.fair_reads import MAX_WAITING_ROWS, PIECE_IDS, ROW_BYTES, FairReads
from scale0.tasks.core.leases import Leases
from scale0.tasks.core.node_reports import (
    FINAL,
    MAX_STATUS_BYTES,
    MAX_STATUS_TEXT_BYTES,
    NodeReport,
    late,
    read_error,
)
from scale0.tasks.core.result_reads import ResultReads, StoredResult
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import BAD_TASK, INVALID_PARAMS, NOT_YOURS, RpcError, error_object, quoted
from scale0.tasks.node.messages import RETURNED

RESULT_ERROR: Final = error_object(INVALID_PARAMS, "the result nests deeper than the limit")
KEY_END: Final = b'":'
RAW: Final = ("result", "error")
MAX_EARLY: Final = 1_000
"""Results that arrived before their lease."""
MAX_EARLY_BYTES: Final = 64 * 1024 * 1024
"""Size limit of all of them."""
BARE_KEYS: Final = 3
"""Number of keys in a TASKSTATUS entry with only id, attempt and status; such an entry is not decoded again."""


class DoneEntry(msgspec.Struct, gc=False):
    id: str
    attempt: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class StatusEntry(msgspec.Struct, gc=False):
    """One entry of TASKSTATUS, without its additional keys."""

    id: str
    attempt: int
    status: str


_dones: Final = msgspec.json.Decoder(list[DoneEntry])
_statuses: Final = msgspec.json.Decoder(list[StatusEntry])
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_whole: Final = msgspec.json.Decoder(dict[str, Any])


class NativeProtocol:
    def __init__(
        self, state: BrokerState, adapter: BrokerAdapter, leases: Leases, results: ResultReads, reads: FairReads
    ) -> None:
        self._state = state
        self._adapter = adapter
        self._leases = leases
        self._results = results
        self._reads = reads
        self._oks: dict[Any, list[bytes]] = {}
        self._early: dict[tuple[str, int], tuple[Any, DoneEntry]] = {}
        self._early_bytes = 0
        """Size of results that arrived before their lease was taken over from another broker of a shared store."""
        leases.on_resumed, leases.on_refused = self._arrived, self._turned_away
        self._unheard: dict[Any, None] = {}
        """Connections whose results could not be stored or looked up; they are asked to send them again."""

    def status(
        self, connection: Connection, _message: Any, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        body = one_body(bodies)
        entries = self._entries("TASKSTATUS", _statuses, body)
        backend = self._adapter.backend_of(connection)
        if backend is None:
            return
        bare = body.count(KEY_END) == BARE_KEYS * len(entries) or has_slow_numbers(body, MAX_BODY_EXPONENTS)
        raws: list[msgspec.Raw] | None = None if bare else read(_raws, body)
        tasks, begun = backend.tasks, self._leases.begun
        for place, entry in enumerate(entries):
            task = tasks.get(entry.id)
            if task is None or task.attempt != entry.attempt or entry.status in FINAL:
                self._leases.reclaim.confirmed(backend, entry.id, entry.attempt, now, effects)
                continue
            if entry.status == RETURNED:
                self._leases.reclaim.returned(task, now, effects)
                continue
            info = b"" if raws is None else self._info(bytes(raws[place]))
            if entry.status != "running" and not info:
                info = msgspec.json.encode({"status": entry.status})
            begun(task, info, now, effects)

    def _info(self, entry: bytes) -> bytes:
        """The additional keys of an entry. Beyond the limits of size and depth its status counts, and nothing else of
        it."""
        is_small = len(entry) <= MAX_STATUS_TEXT_BYTES and self._adapter.is_shallow(entry)
        return info_of(read(_whole, entry)) if is_small else b""

    def done(self, connection: Connection, _message: Any, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
        body = one_body(bodies)
        entries = self._entries("TASKSDONE", _dones, body)
        if self._state.full:
            # Nothing can be stored. Without an acknowledgement the backend keeps the result and is asked again.
            self._unheard[connection] = None
            return
        backend = self._adapter.backend_of(connection)
        if backend is None:
            # It may hold a lease from before this broker's start: it must report its leases before its results.
            self._adapter.force(connection, now, effects)
            return
        tasks = backend.tasks
        ended: dict[str, int] = {}
        oks = self._oks.setdefault(connection, [])
        strangers: list[DoneEntry] = []
        for entry in entries:
            task = tasks.get(entry.id)
            if task is not None and task.attempt == entry.attempt:
                self._end(task, entry, now, effects)
                ended[task.method] = ended.get(task.method, 0) + 1
                oks.append(b'["%b",%d,200]' % (entry.id.encode(), entry.attempt))
            else:
                self._leases.reclaim.confirmed(backend, entry.id, entry.attempt, now, effects)
                strangers.append(entry)
        if strangers:
            self._late(connection, backend, strangers, len(body), effects)
        for method, count in ended.items():
            self._leases.measured(backend.offering(method), count, now)

    def _entries(self, command: str, decoder: msgspec.json.Decoder[Any], body: bytes) -> list[Any]:
        entries: list[Any] = read(decoder, body)
        most = self._state.limits.max_batch_messages
        if len(entries) > most:
            raise Refusal(codes.TOO_BIG, f"{command} holds at most {most} entries")
        return entries

    def _end(self, task: Any, entry: DoneEntry, now: Now, effects: Effects) -> None:
        self._leases.end(task, self._report(entry), now, effects)

    def _report(self, entry: DoneEntry) -> NodeReport:
        if entry.error is not msgspec.UNSET and bytes(entry.error) != b"null":
            try:
                return read_error(bytes(entry.error), self._adapter)
            except RpcError as fault:
                return NodeReport(FAILED, error_object(fault.code, fault.message), fault.code)
        result = b"null" if entry.result is msgspec.UNSET else bytes(entry.result)
        depth = self._state.limits.max_json_depth
        if result.count(b"[") + result.count(b"{") > depth and not self._adapter.is_shallow(result):
            return NodeReport(FAILED, RESULT_ERROR, INVALID_PARAMS)
        return NodeReport(FINISHED, result)

    def _late(
        self, connection: Connection, backend: Any, entries: list[DoneEntry], size: int, effects: Effects
    ) -> None:
        """Handles results without a lease: they are duplicates, late or unknown. `size`: of the body that they are
        part of."""
        sender = connection.account
        if not self._reads.has_room(sender, len(entries), size):
            self._unheard[connection] = None
            return
        sender.charge_rows(found=len(entries))
        for first in range(0, len(entries), PIECE_IDS):
            piece = entries[first : first + PIECE_IDS]
            kept = size if first + PIECE_IDS >= len(entries) else 0
            found = partial(self._found, connection, backend, piece)
            self._reads.find(sender, [entry.id for entry in piece], found, effects, kept)

    def _found(
        self,
        connection: Connection,
        backend: Any,
        entries: list[DoneEntry],
        rows: tuple[Any, ...],
        now: Now,
        effects: Effects,
    ) -> None:
        name = backend.identity
        oks = self._oks.setdefault(connection, [])
        again: list[tuple[int, DoneEntry]] = []
        for entry, row in zip(entries, rows, strict=True):
            held = backend.tasks.get(entry.id)
            if held is not None and held.attempt == entry.attempt:
                # Meanwhile this broker took the lease over from another broker of the shared store.
                self._end(held, entry, now, effects)
                oks.append(b'["%b",%d,200]' % (entry.id.encode(), entry.attempt))
                continue
            if self._leases.fetch(row, backend, entry.attempt, now, effects):
                self._keep(connection, entry)  # its lease is being taken over
                continue
            code = late(row, backend, entry.attempt)
            if code:
                self._adapter.refuse_result(connection, name, entry.id, entry.attempt, code, now, effects)
                oks.append(refused_entry(entry, code))
            else:
                again.append((row.seq, without_body(entry)))
        if again:
            self._reads.hold(connection.account, sum(rows_of(entry) for _, entry in again))
            self._compare(connection, name, again, effects)

    def _compare(
        self, connection: Connection, name: str, again: Sequence[tuple[int, DoneEntry]], effects: Effects
    ) -> None:
        """Acknowledges results that are sent again; refuses those that differ from the stored ones."""

        def read_results(results: Sequence[StoredResult], now: Now, out: Effects) -> None:
            oks = self._oks.setdefault(connection, [])
            for (_, entry), stored in zip(again, results, strict=False):
                if self._report(entry).is_stored_as(stored):
                    oks.append(b"[%b,%d,%d]" % (quoted(entry.id), entry.attempt, codes.OK))
                else:
                    self._adapter.refuse_result(connection, name, entry.id, entry.attempt, NOT_YOURS, now, out)
                    oks.append(refused_entry(entry, NOT_YOURS))
            self._reads.let_go(connection.account, sum(rows_of(entry) for _, entry in again[: len(results)]))
            if len(results) < len(again):
                self._compare(connection, name, again[len(results) :], out)

        self._results.ask(tuple(seq for seq, _ in again), read_results, effects)

    def _keep(self, connection: Connection, entry: DoneEntry) -> None:
        """Keeps an early result. If there are too many, the backend sends it again later."""
        size = size_of(entry)
        if len(self._early) < MAX_EARLY and self._early_bytes + size <= MAX_EARLY_BYTES:
            self._pop_early((entry.id, entry.attempt))
            self._early_bytes += size
            self._early[entry.id, entry.attempt] = (connection, without_body(entry))

    def _arrived(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Applies an early result when its lease arrives."""
        early = self._pop_early((task.id, task.attempt))
        if early is not None:
            connection, entry = early
            self._end(task, entry, now, effects)
            self._oks.setdefault(connection, []).append(b'["%b",%d,200]' % (task.id.encode(), task.attempt))

    def _turned_away(self, id_: str, attempt: int) -> None:
        self._pop_early((id_, attempt))

    def _pop_early(self, key: tuple[str, int]) -> tuple[Any, DoneEntry] | None:
        early = self._early.pop(key, None)
        if early is not None:
            self._early_bytes -= size_of(early[1])
        return early

    def forget(self, connection: Connection) -> None:
        """Discards early results of a closed connection: the backend sends them again on its next one."""
        self._unheard.pop(connection, None)
        for key in [key for key, (whose, _) in self._early.items() if whose is connection]:
            self._pop_early(key)

    def ask_again(self, now: Now, effects: Effects) -> None:
        """Asks for rejected results again when the disk has room, and no more than half of what its sender may have
        waiting: the backend sends them after a new READY."""
        half = MAX_WAITING_ROWS // 2
        for connection in [one for one in self._unheard if self._reads.has_room(one.account, half)]:
            del self._unheard[connection]
            self._adapter.renegotiate(connection, now, effects)

    def settle(self, effects: Effects) -> None:
        """Sends the acknowledgements of this turn after its commit."""
        if self._oks:
            oks, self._oks = self._oks, {}
            for connection, entries in oks.items():
                if entries:
                    effects.promise(connection, ("TASKSOK", {}, b"[%b]" % b",".join(entries)))


def one_body(bodies: Sequence[bytes]) -> bytes:
    if len(bodies) != 1:
        raise Refusal(codes.MALFORMED, "exactly one body: a JSON array")
    return bodies[0]


def read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Refusal(codes.MALFORMED, str(error)[:200]) from error


def refused_entry(entry: DoneEntry, code: int) -> bytes:
    """The entry of TASKSOK for a refused result."""
    answer = codes.NO_SUCH_SERVICE if code == BAD_TASK else codes.IN_USE
    return b"[%b,%d,%d]" % (quoted(entry.id), entry.attempt, answer)


def without_body(entry: DoneEntry) -> DoneEntry:
    """A copy that does not keep the whole message in memory."""
    raw = {name: value.copy() for name in RAW if isinstance(value := getattr(entry, name), msgspec.Raw)}
    return msgspec.structs.replace(entry, **raw)


def size_of(entry: DoneEntry) -> int:
    """Returns the size of the results and errors in an entry."""
    given = (getattr(entry, name) for name in RAW)
    return sum(memoryview(value).nbytes for value in given if isinstance(value, msgspec.Raw))


def rows_of(entry: DoneEntry) -> int:
    """Waiting rows as which a kept entry counts."""
    return 1 + size_of(entry) // ROW_BYTES


def info_of(whole: dict[str, Any]) -> bytes:
    """Returns the additional keys of an entry as JSON."""
    fields = {key: value for key, value in whole.items() if key not in ("id", "attempt")}
    if fields.get("status") == "running":
        del fields["status"]
    info = msgspec.json.encode(fields) if fields else b""
    return info if len(info) <= MAX_STATUS_BYTES else b""
