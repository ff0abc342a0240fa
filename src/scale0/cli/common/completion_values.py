"""Values for shell completion that only the network knows.

Completion is fast, prints nothing on errors, and never asks for a password.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common.authentication import AdminAccess
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import DEFAULT_HOST, FRONTEND_PORT, endpoint_of
from scale0.kernel.errors import Scale0Error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from scale0.client.client import Client

COMPLETION_SECONDS: Final = 0.5
"""How long completion may wait for an answer."""
MAX_VALUES: Final = 200

Pair = tuple[str, str]
"""A value and its description."""
Find = Callable[["Client", "CompletionQuery"], Iterable[Pair]]
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


class CompletionQuery:
    """The words that are already on the command line, and their credentials."""

    def __init__(self, context: click.Context, join: str) -> None:
        self.params = context.params
        self._join = join

    def manage(self, client: Client, command: str, **arguments: Any) -> Any:
        """A management command with an available token; empty without one."""
        credentials = AdminAccess(self._join, self.params.get("token"), None, self.params.get("data_dir")).find()
        return client.manage(command, **arguments, **credentials) if credentials else {"items": [], "config": {}}


def completing(find: Find) -> Completer:
    """A completer for click: values that start with the typed word; none if the network does not answer."""

    def complete(context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            join = context.params.get("join") or endpoint_of(DEFAULT_HOST, FRONTEND_PORT)
            with connect(join, COMPLETION_SECONDS, COMPLETION_SECONDS) as client:
                found = dict(pair for pair in find(client, CompletionQuery(context, join)) if pair[0].startswith(start))
        except (Scale0Error, OSError, click.ClickException, KeyError, ValueError):
            return []
        return [CompletionItem(value, help=word) for value, word in sorted(found.items())[:MAX_VALUES]]

    return complete


def _services(client: Client, _query: CompletionQuery) -> Iterable[Pair]:
    return [(row["service"], f"{row['busy']} of {row['slots']} busy") for row in client.services()]


def _clients(client: Client, _query: CompletionQuery) -> Iterable[Pair]:
    return [(row["identity"], row["role"]) for row in client.clients()]


def _brokers(client: Client, _query: CompletionQuery) -> Iterable[Pair]:
    return [(row["broker"], row["state"]) for row in client.brokers()]


def _tasks(client: Client, query: CompletionQuery) -> Iterable[Pair]:
    rows = query.manage(client, "list_tasks", limit=MAX_VALUES)["items"]
    return [(row["task_id"], f"{row['method']} {row['status']}") for row in rows]


def _monitored(view: str, name: str, word: str) -> Find:
    def find(client: Client, query: CompletionQuery) -> Iterable[Pair]:
        from scale0.cli.monitoring import helens

        agent = query.params.get("agent")
        only = {"agent": agent} if name == "check" and isinstance(agent, str) and agent else {}
        every = {"all": True} if view == "agents" else {}
        return [(row[name], str(row[word])) for row in helens.ask(client, view, {**every, **only}).rows]

    return find


def _entries(key: str) -> Find:
    def find(client: Client, query: CompletionQuery) -> Iterable[Pair]:
        found = query.manage(client, "get_config")["config"]
        return [(row["name"], str(row.get("reason") or row.get("check") or "")) for row in found.get(key, ())]

    return find


def _listed(command: str, name: str, word: str) -> Find:
    def find(client: Client, query: CompletionQuery) -> Iterable[Pair]:
        return [(str(row[name]), str(row[word])) for row in query.manage(client, command, limit=MAX_VALUES)["items"]]

    return find


def _explained(client: Client, query: CompletionQuery) -> Iterable[Pair]:
    yield from _tasks(client, query)
    yield from _clients(client, query)


services = completing(_services)
clients = completing(_clients)
brokers = completing(_brokers)
tasks = completing(_tasks)
agents = completing(_monitored("agents", "agent", "state"))
checks = completing(_monitored("checks", "check", "state"))
explained = completing(_explained)
definitions = completing(_entries("checks"))
handlers = completing(_entries("handlers"))
silences = completing(_entries("silences"))
downtimes = completing(_entries("downtimes"))
versions = completing(_listed("config_history", "version", "author"))
error_clients = completing(_listed("list_error_clients", "client", "socket"))
tokens = completing(_listed("list_tokens", "name", "role"))
