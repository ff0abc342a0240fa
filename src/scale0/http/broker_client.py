"""The client of one broker, and its errors as `ApiProblem`.

A management command carries the token of the user who sent it. Each password is sent on a connection of its own,
because a broker checks one at a time per connection and delays the answer to a wrong one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from scale0.client import payload
from scale0.client.admin.helens import PAGE_ROWS, PagedRows, view_service
from scale0.client.admin.rows import Row
from scale0.client.async_client import AsyncClient
from scale0.errors import CallError
from scale0.http.cache import ResponseCache
from scale0.http.problem import ApiProblem, problem_of
from scale0.kernel.edge.secret_files import read_secret

CALL_SECONDS: Final = 10.0
"""Timeout of a command or a call."""
PATIENCE_SECONDS: Final = 3.0
"""How long a broker may be unreachable before a call to it fails."""
LOGIN_TIMEOUT_SECONDS: Final = 45.0
"""Timeout of a login: longer than a broker on another machine delays the answer to a wrong password."""
HELEN_SECONDS: Final = 5.0
"""Timeout of one page of a Helen."""
MAX_LOGIN_CONNECTIONS: Final = 32
"""Passwords that the broker checks at once; without its token file a wrong one takes up to half a minute."""
SPARE_LOGIN_CONNECTIONS: Final = 2
"""Connections that are kept for the next login."""
CACHE_SECONDS: Final = 0.5
"""How old a cached answer may be."""
LIST_SECONDS: Final = 1.0
"""The same for a complete list, which costs the broker more."""
MAX_LIST_ROWS: Final = 100 * PAGE_ROWS
"""Of a list that is read completely."""


class BrokerClient:
    def __init__(self, endpoint: str, token_file: Path | None = None) -> None:
        self._endpoint = endpoint
        self._token_file = token_file
        self._token: str | None = None
        self._client = self._connected()
        self._spare_logins: list[AsyncClient] = []
        self._logins = 0
        self.cache = ResponseCache()

    async def close(self) -> None:
        for client in (self._client, *self._spare_logins):
            await client.close()

    async def manage(
        self, token: str, command: str, *, origin: str = "", timeout: float = CALL_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """Send a management command with a token; arguments that are None are left out. Raises `ApiProblem`."""
        given = {name: value for name, value in arguments.items() if value is not None}
        if origin:
            given["origin"] = origin
        return await self._managed(self._client, command, timeout, {"auth_token": token, **given})

    async def read(
        self, token: str, command: str, *, seconds: float = CACHE_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """The same for a command that changes nothing and that every viewer may send: its answer is cached."""
        key = f"{command} {msgspec.json.encode(sorted(arguments.items())).decode()}"
        return await self.cache.get(key, seconds, lambda: self.manage(token, command, **arguments))

    async def rows(self, token: str, command: str, *, seconds: float = LIST_SECONDS) -> list[Row]:
        async def ask() -> list[Row]:
            pages = PagedRows({}, MAX_LIST_ROWS)
            while (arguments := pages.request()) is not None:
                pages.add(await self.manage(token, command, **arguments))
            return pages.rows

        return await self.cache.get(f"rows {command}", seconds, ask)

    async def local_rows(self, command: str, limit: int) -> list[Row]:
        """At most `limit` rows of a list, with the token of the broker's machine."""
        pages = PagedRows({}, limit)
        while (arguments := pages.request()) is not None:
            pages.add(await self.local(command, **arguments))
        return pages.rows

    async def helen_rows(self, helen: str, view: str, arguments: Row, limit: int) -> list[Row] | None:
        """At most `limit` rows of a view of one Helen; None: she does not answer. Raises `ApiProblem` 400."""
        pages = PagedRows(arguments, limit)
        try:
            while (request := pages.request()) is not None:
                pages.add(await self.request(view_service(helen, view), request, timeout=HELEN_SECONDS))
        except ApiProblem as problem:
            if problem.status == 400:
                raise
            return None
        return pages.rows

    async def call(self, service: str, *, timeout: float = CALL_SECONDS, **arguments: Any) -> Any:
        """A request with arguments by name. Raises `ApiProblem`."""
        return await self.request(service, arguments, timeout=timeout)

    async def request(self, service: str, body: dict[str, Any], *, timeout: float = CALL_SECONDS) -> Any:
        """The same with a body, which may have a key `timeout`."""
        frame = payload.encode(body) if body else b""
        try:
            frames = await self._client.request(service, frame, timeout=timeout)
        except CallError as error:
            raise problem_of(error) from None
        except ValueError as error:
            raise ApiProblem(413, str(error)) from None
        return payload.decode(frames[0]) if frames else None

    async def local(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command with the token file of the broker's machine, which changes with each start of the broker."""
        for attempt in range(2):
            token = self._own_token(again=attempt > 0)
            if token is None:
                raise ApiProblem(
                    503, "the broker's token file is not on this machine", "start the server with --data-dir FOLDER"
                )
            try:
                return await self.manage(token, command, **arguments)
            except ApiProblem as problem:
                if problem.status != 401 or attempt:
                    raise
        raise AssertionError("two attempts end in an answer or a problem")

    async def log_in(self, name: str, password: str, origin: str) -> dict[str, Any]:
        """A token for a password. Raises `ApiProblem`."""
        async with self._login_connection() as client:
            arguments = {"auth_id": name, "auth_password": password, "origin": origin}
            if token := self._own_token(again=True):
                arguments["local_token"] = token
            return await self._managed(client, "login", LOGIN_TIMEOUT_SECONDS, arguments)

    @property
    def is_local(self) -> bool:
        """True on the broker's machine: the broker then leaves the limits of wrong passwords to this server."""
        return self._token_file is not None

    def _own_token(self, again: bool) -> str | None:
        if self._token is None or again:
            self._token = read_secret(self._token_file) if self._token_file is not None else None
        return self._token

    @asynccontextmanager
    async def _login_connection(self) -> AsyncIterator[AsyncClient]:
        if self._logins >= MAX_LOGIN_CONNECTIONS:
            raise ApiProblem(429, "too many logins are in progress", retry_after=5.0)
        self._logins += 1
        client = self._spare_logins.pop() if self._spare_logins else self._connected()
        keep = False
        try:
            yield client
            keep = True
        except ApiProblem as problem:
            keep = problem.status in (401, 429)
            raise
        finally:
            self._logins -= 1
            if keep and len(self._spare_logins) < SPARE_LOGIN_CONNECTIONS:
                self._spare_logins.append(client)
            else:
                await client.close()

    def _connected(self) -> AsyncClient:
        return AsyncClient(self._endpoint, timeout=CALL_SECONDS, patience=PATIENCE_SECONDS)

    async def _managed(self, client: AsyncClient, command: str, timeout: float, arguments: Row) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await client.manage(command, timeout=timeout, **arguments)
            return found
        except CallError as error:
            raise problem_of(error) from None
        except ValueError as error:
            raise ApiProblem(413, str(error)) from None
