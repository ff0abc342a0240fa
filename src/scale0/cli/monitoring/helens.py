"""Reading a view of every connected Helen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scale0.cli.common import errors
from scale0.client.admin.helens import HelenRows, PagedRows, joined, view_service
from scale0.client.admin.rows import Row, helens_of

if TYPE_CHECKING:
    from scale0.client.client import Client


def need_helens(client: Client) -> list[str]:
    """The identities of the Helens that are connected; without any, an error that says how to start one."""
    found = helens_of(client.services())
    if not found:
        raise errors.CommandError(
            "no Helen is connected", "`scale0 up` starts one here; else: scale0 helen --config FILE"
        )
    return found


def ask(client: Client, view: str, arguments: Row, limit: int | None = None, known: Sequence[str] = ()) -> HelenRows:
    """Every row of a view, at most `limit` of each Helen (`known`, or all that are connected). A Helen that does not
    answer is listed in `silent`; if none answers, that is an error."""
    from scale0.errors import CallError

    answers: dict[str, list[Row] | None] = {}
    names = known or need_helens(client)
    for helen in names:
        pages = PagedRows(arguments, limit)
        try:
            while (request := pages.request()) is not None:
                pages.add(client.call(view_service(helen, view), **request))
        except CallError as error:
            answers[helen] = None
            if len(answers) == len(names) and not any(rows is not None for rows in answers.values()):
                raise errors.CommandError(
                    f"{helen} does not answer: {error.message}",
                    "see its log; `scale0 clients` lists the connected clients",
                ) from error
        else:
            answers[helen] = pages.rows
    return joined(answers)
