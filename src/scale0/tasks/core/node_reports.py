"""What a node reports of a task, however it is connected: by JSON-RPC (`node_methods`) or natively (`native`).

Lives here: reading statuses and errors, and what is said to a result that no lease waits for. Never here: the leases,
or an answer. Invariant: a report that is malformed, too big or too deep is refused before anything of it is believed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from scale0.storage.task_rows import FAILED, FINISHED, EndedTask, OpenTask
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.arguments import ErrorObject
from scale0.tasks.jsonrpc.messages import ATTEMPTS_LOST, BAD_TASK, INVALID_PARAMS, NOT_YOURS, RpcError, error_object

MAX_STATUS_BYTES: Final = 16 * 1024
"""Of what a node says of itself, or of a task."""
LOST_ERROR: Final = b'{"code":%d,' % ATTEMPTS_LOST
"""How the error of a task begins whose attempts were lost."""
FINAL: Final = frozenset({"finished", "failed", "cancelled"})
_error: Final = msgspec.json.Decoder(ErrorObject)


def late(row: QueuedTask | OpenTask | EndedTask | None, node: str, attempt: int | None) -> int:
    """What to say to a result that no lease waits for: 0 if it is the one that was stored."""
    if row is None:
        return BAD_TASK
    if not isinstance(row, EndedTask) or row.node != node or row.status not in (FINISHED, FAILED):
        return NOT_YOURS
    if row.result.startswith(LOST_ERROR):
        # Its attempts were lost, so it ended without a report: whatever comes now is not what was stored.
        return NOT_YOURS
    return 0 if attempt is None or attempt == row.attempt else NOT_YOURS


class NodeReport(NamedTuple):
    """An error that a node reported."""

    code: int
    error: bytes
    """The object, without `retry` and `after`."""
    retry: bool
    after: float


def read_error(data: bytes, adapter: BrokerAdapter) -> NodeReport:
    """A reported error."""
    if not adapter.is_shallow(data):
        raise RpcError(INVALID_PARAMS, "the error nests too deep")
    try:
        error = _error.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as fault:
        raise RpcError(INVALID_PARAMS, f"an error has code and message: {fault}"[:500]) from fault
    whole = error_object(error.code, error.message, bytes(error.data))
    return NodeReport(error.code, whole, error.retry, error.after)


def read_status(params: msgspec.Raw) -> dict[str, Any]:
    """The arguments of task_status: by name with whatever else is said, by position with one object of it."""
    try:
        said = msgspec.json.decode(params)
    except (msgspec.DecodeError, RecursionError, ValueError) as fault:
        raise RpcError(INVALID_PARAMS, str(fault)[:500]) from fault
    if isinstance(said, list):
        if not 3 <= len(said) <= 4 or (len(said) == 4 and not isinstance(said[3], dict)):
            raise RpcError(INVALID_PARAMS, "task_status takes node_id, task_id, status and an object")
        more = said[3] if len(said) == 4 else {}
        said = {**more, "node_id": said[0], "task_id": said[1], "status": said[2]}
    if not isinstance(said, dict) or not all(isinstance(said.get(k), str) for k in ("node_id", "task_id", "status")):
        raise RpcError(INVALID_PARAMS, "task_status takes the strings node_id, task_id and status")
    return said
