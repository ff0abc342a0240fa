"""A snapshot of a whole network: the broker, its peers, services and queues, and what every Helen monitors.

Without credentials, or with those of another broker, a snapshot has what any client may know. A management command that
the broker does not know is not sent again. A Helen that does not answer hides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.cli.common import errors
from scale0.cli.common.authentication import AdminAccess, Credentials, log_in
from scale0.cli.monitoring import helens
from scale0.client.admin.helens import PagedRows
from scale0.client.admin.rows import Row, helens_of, known_agents, known_checks, known_incidents
from scale0.kernel import codes

if TYPE_CHECKING:
    from scale0.client.admin.health import NetworkSnapshot
    from scale0.client.client import Client

MAX_ROWS: Final = 20_000
"""Of one list, so that a snapshot ends; a screen shows fewer."""
MAX_INCIDENTS: Final = 1_000

UNKNOWN: Final = dict.fromkeys(
    (
        *("version", "uptime", "config_hash", "heartbeat_interval", "connections", "requests", "tasks"),
        *("error_clients", "counters", "full", "outage", "clock_suspect"),
    )
)
"""The keys of a broker's status that only management returns."""


class Snapshot(NamedTuple):
    seen: NetworkSnapshot
    brokers: list[Row]
    """This one first."""
    rates: list[Row] | None
    """Counts of `list_rates`; None: no credentials, or a broker without this command."""
    at: float
    """Monotonic, for rates."""
    managed: bool
    """False: without credentials."""


class AdminRights:
    """Credentials for management, which are read again when the broker has restarted."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self._explicit = bool(access.token or access.auth_id or access.data_dir)
        self._credentials = access.find()
        self._token: Credentials | None = None
        self._refused: Exception | None = None
        """A wrong password is sent once: each attempt costs the broker a hash, and us a longer wait."""
        self._unknown: set[str] = set()

    def manage(self, client: Client, command: str, **arguments: Any) -> Any:
        """The answer of a management command; None without credentials, or if the broker does not know the command.

        Wrong credentials are an error only if they were given explicitly.
        """
        from scale0.errors import CallError, WrongCredentials

        if command in self._unknown or self._credentials is None:
            return None
        try:
            return self._send(client, command, arguments)
        except WrongCredentials:
            if self._explicit:
                raise
            return None  # a token file in the current folder may belong to another broker
        except CallError as error:
            if error.code != codes.UNKNOWN_COMMAND:
                raise
            self._unknown.add(command)
            return None

    def pages(self, client: Client, command: str) -> list[Row] | None:
        """All rows of a list, up to a limit."""
        pages = PagedRows({}, MAX_ROWS)
        while (request := pages.request()) is not None:
            page = self.manage(client, command, **request)
            if page is None:
                return None
            pages.add(page)
        return pages.rows

    def _send(self, client: Client, command: str, arguments: dict[str, Any]) -> Any:
        from scale0.errors import WrongCredentials

        try:
            return client.manage(command, **arguments, **self._login(client))
        except WrongCredentials as error:
            if self._token is None and self._access.auth_id:
                self._refused = error
                raise
            # The token file changes when its broker restarts, and the token of `login` is valid for an hour.
            self._token = None
            if not self._access.auth_id:
                self._credentials = self._access.find() or self._credentials
            return client.manage(command, **arguments, **self._login(client))

    def _login(self, client: Client) -> Credentials:
        if self._refused is not None:
            raise self._refused
        if self._token is None:
            assert self._credentials is not None
            self._token = log_in(client, self._credentials)
        return self._token


def take(client: Client, rights: AdminRights) -> Snapshot:
    """One snapshot; a broker that does not serve still answers management."""
    import time

    from scale0.client.admin.health import LOOK_TASKS, NetworkSnapshot

    found: dict[str, Any] = {"status": rights.manage(client, "status")}
    managed, rates = bool(found["status"]), None
    if managed:
        found["services"] = rights.pages(client, "list_services") or []
        found["peers"] = rights.pages(client, "list_peers") or []
        found["queues"] = rights.pages(client, "list_queues")
        if not found["status"].get("outage"):  # else it cannot be read
            found["tasks"] = (rights.manage(client, "list_tasks", status="queued", limit=LOOK_TASKS) or {}).get("items")
        some = found["status"]["error_clients"]
        found["error_clients"] = rights.pages(client, "list_error_clients") if some else []
        rates = rights.pages(client, "list_rates")
        brokers = [own_row(found["status"]), *(row for row in found["peers"] if row["broker"])]
    else:
        brokers = client.brokers()
        found["peers"] = brokers[1:]
        found["services"] = client.services()
        found["status"] = discovered(client, brokers[0], found["services"])
    at = time.monotonic()
    seen = NetworkSnapshot(**found, **dict(monitored(client, found["services"])))
    return Snapshot(seen, brokers, rates, at, managed)


def own_row(status: Row) -> Row:
    """The connected broker as a row of the list of brokers."""
    kept = {key: status[key] for key in ("broker", "group", "state", "standby_for", "endpoints", "config_version")}
    return {**kept, "load": float(sum(status["clients"].values())), "age": 0.0}


def monitored(client: Client, services: list[Row]) -> Iterator[tuple[str, Any]]:
    """What the Helens answer, under the names of `NetworkSnapshot`; those that do not answer are named."""
    known = helens_of(services)
    yield "watched", bool(known)
    silent: dict[str, None] = {}
    for view, query, limit, merged in (
        ("agents", {"all": True}, MAX_ROWS, known_agents),
        ("checks", {}, MAX_ROWS, lambda rows: known_checks(rows, problems=False)),
        ("incidents", {"open": True}, MAX_INCIDENTS, known_incidents),
    ):
        answering = [name for name in known if name not in silent]
        if not answering:
            yield view, [] if not known else None
            continue
        try:
            answer = helens.ask(client, view, dict(query), limit, answering)
        except errors.CommandError:
            silent |= dict.fromkeys(answering)
            yield view, None
        else:
            silent |= dict.fromkeys(answer.silent)
            yield view, merged(answer.rows)
    yield "silent", list(silent)


def discovered(client: Client, broker: Row, services: list[Row]) -> Row:
    """The status of a broker, as far as any client may know it."""
    ping = client.ping()
    roles: dict[str, int] = {}
    for row in client.clients():
        roles[row["role"]] = roles.get(row["role"], 0) + 1
    return {
        **UNKNOWN,
        "broker": ping["broker"],
        "state": ping["state"],
        "draining": None,
        "standby_for": broker.get("standby_for", ""),
        "group": broker["group"],
        "time": ping["time"],
        "config_version": ping["config_version"],
        "full": ping.get("full"),
        "outage": {"since": ping["outage_since"]} if ping.get("outage_since") else None,
        "clients": roles,
        "services": sum(row["backends"] > 0 for row in services),
        "endpoints": broker["endpoints"],
    }
