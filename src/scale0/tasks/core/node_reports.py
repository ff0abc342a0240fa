"""Reports from nodes about tasks, for JSON-RPC (`node_methods`) and native connections (`native_protocol`). Invariant:
a report that is malformed, too large or too deep is refused before any part of it takes effect."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from scale0.broker.core.scheduler import Backend
from scale0.storage.task_rows import FAILED, FINISHED, EndedTask, OpenTask
from scale0.tasks.core.broker_adapter import BrokerAdapter
from scale0.tasks.core.result_reads import StoredResult
from scale0.tasks.core.task import QueuedTask, belongs_to
from scale0.tasks.jsonrpc.arguments import ErrorObject, decode_value, read_seconds
from scale0.tasks.jsonrpc.messages import BAD_TASK, INVALID_PARAMS, NOT_YOURS, RpcError, canonical, error_object

MAX_STATUS_BYTES: Final = 16 * 1024
"""Size limit of a node's status or a task's status."""
MAX_STATUS_TEXT_BYTES: Final = 4 * MAX_STATUS_BYTES
"""Size limit of the arguments with a status, which is checked before they are decoded: the status may have spaces and
escapes."""
FINAL: Final = frozenset({"finished", "failed", "cancelled"})
_error: Final = msgspec.json.Decoder(ErrorObject)
_any: Final = msgspec.json.Decoder()


def late(row: QueuedTask | OpenTask | EndedTask | None, node: Backend, attempt: int | None) -> int:
    """Returns the code for a result without a lease: 0 if the node ended the task with this attempt and its key."""
    if row is None:
        return BAD_TASK
    if not isinstance(row, EndedTask) or row.node != node.identity or row.status not in (FINISHED, FAILED):
        return NOT_YOURS
    if not belongs_to(row.node_owner, node.peer.public_key):
        return NOT_YOURS
    return 0 if attempt is None or attempt == row.attempt else NOT_YOURS


class NodeReport(NamedTuple):
    """How an attempt ended."""

    status: int
    """FINISHED or FAILED."""
    body: bytes
    """The result; or the error object, without `retry` and `after`."""
    code: int = 0
    retry: bool = False
    after: float = 0.0

    def is_stored_as(self, stored: StoredResult) -> bool:
        """True if it is the stored end of its task, sent again."""
        if stored is None or stored[0] != self.status:
            return False
        return stored[1] == self.body or canonical(stored[1]) == canonical(self.body)


def read_error(data: bytes, adapter: BrokerAdapter) -> NodeReport:
    if not adapter.is_shallow(data):
        raise RpcError(INVALID_PARAMS, "the error nests deeper than the limit")
    try:
        error = _error.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as fault:
        raise RpcError(INVALID_PARAMS, f"an error needs code and message: {fault}"[:500]) from fault
    whole = error_object(error.code, error.message, bytes(error.data))
    return NodeReport(FAILED, whole, error.code, error.retry, read_seconds(error.after, "after"))


def read_any(value: msgspec.Raw) -> Any:
    """Decodes a status, or arguments with one."""
    return decode_value(_any, bytes(value), "status")


def read_status(params: msgspec.Raw) -> dict[str, Any]:
    """Returns the arguments of task_status: by name with any additional keys, or by position with one object of
    them."""
    status = read_any(params)
    if isinstance(status, list):
        if not 3 <= len(status) <= 4 or (len(status) == 4 and not isinstance(status[3], dict)):
            raise RpcError(INVALID_PARAMS, "task_status takes node_id, task_id, status and an object")
        more = status[3] if len(status) == 4 else {}
        status = {**more, "node_id": status[0], "task_id": status[1], "status": status[2]}
    if not isinstance(status, dict) or not all(
        isinstance(status.get(k), str) for k in ("node_id", "task_id", "status")
    ):
        raise RpcError(INVALID_PARAMS, "task_status takes the strings node_id, task_id and status")
    return status
