"""The network as the HTTP server sees it: a client of one broker.

Lives here: connections, and the network's refusals as problems. Never here: HTTP, or what a command means. Invariants:
a management command goes with the token of whoever gave it; a password is sent on a line of its own, because a broker
checks one at a time for each connection and answers a wrong one late.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from scale0.client import payload
from scale0.client.async_client import AsyncClient
from scale0.errors import CallError
from scale0.http.cache import ResponseCache
from scale0.http.problem import ApiProblem, problem_of
from scale0.kernel.edge.secret_files import read_secret

CALL_SECONDS: Final = 10.0
"""How long a command or a call may take."""
PATIENCE_SECONDS: Final = 3.0
"""How long a broker may be away before a call to it fails."""
LOGIN_SECONDS: Final = 45.0
"""How long a login may take: longer than a broker lets a wrong password wait."""
MAX_LOGIN_LINES: Final = 32
"""Passwords that are on their way to the broker at once; wrong ones stay up to half a minute."""
SPARE_LOGIN_LINES: Final = 2
"""Lines that are kept for the next login."""
SNAPSHOT_SECONDS: Final = 0.5
"""How old an answer may be that several readers share."""
LIST_SECONDS: Final = 1.0
"""The same for a whole list, which costs the broker more."""
PAGE_ROWS: Final = 1_000
MAX_PAGES: Final = 100
"""Of a list that is read whole: 100,000 rows."""


class BrokerClient:
    """One broker, from one event loop."""

    def __init__(self, endpoint: str, token_file: Path | None = None) -> None:
        self._endpoint = endpoint
        self._token_file = token_file
        self._token: str | None = None
        self._client = self._connected()
        self._login_lines: list[AsyncClient] = []
        self._logins = 0
        self.snapshots = ResponseCache()

    async def close(self) -> None:
        """Leave."""
        for client in (self._client, *self._login_lines):
            await client.close()

    async def manage(
        self, token: str, command: str, *, origin: str = "", timeout: float = CALL_SECONDS, **arguments: Any
    ) -> Any:
        """A management command with somebody's token. Raises `ApiProblem`."""
        said = {name: value for name, value in arguments.items() if value is not None}
        if origin:
            said["origin"] = origin
        return await self._managed(self._client, command, timeout, {"auth_token": token, **said})

    async def read(self, token: str, command: str, *, seconds: float = SNAPSHOT_SECONDS, **arguments: Any) -> Any:
        """The same for a command that changes nothing, and that every viewer may give: shared for a moment."""
        key = f"{command} {msgspec.json.encode(sorted(arguments.items())).decode()}"
        return await self.snapshots.get(key, seconds, lambda: self.manage(token, command, **arguments))

    async def rows(self, token: str, command: str, *, seconds: float = LIST_SECONDS) -> list[dict[str, Any]]:
        """Every row of a list, shared for a moment."""
        found: list[dict[str, Any]] = await self.snapshots.get(
            f"rows {command}", seconds, lambda: self._rows(token, command)
        )
        return found

    async def _rows(self, token: str, command: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.manage(token, command, limit=PAGE_ROWS, after=after)
            found.extend(page["items"])
            after = page["next"]
            if after is None:
                break
        return found

    async def call(self, service: str, *, timeout: float = CALL_SECONDS, **asked: Any) -> Any:
        """A request with arguments by name. Raises `ApiProblem`."""
        return await self.request(service, asked, timeout=timeout)

    async def request(self, service: str, body: dict[str, Any], *, timeout: float = CALL_SECONDS) -> Any:
        """The same, where a key of the body may be called `timeout`."""
        frame = payload.encode(body) if body else b""
        try:
            frames = await self._client.request(service, frame, timeout=timeout)
        except CallError as error:
            raise problem_of(error) from None
        except ValueError as error:
            raise ApiProblem(413, str(error)) from None
        return payload.decode(frames[0]) if frames else None

    async def local(self, command: str, **arguments: Any) -> Any:
        """A command of our own, with the token file of the broker's machine; it changes when the broker starts."""
        for attempt in range(2):
            token = self._own_token(again=attempt > 0)
            if token is None:
                raise ApiProblem(503, "there is no token file of the broker here", "start it with --data-dir FOLDER")
            try:
                return await self.manage(token, command, **arguments)
            except ApiProblem as problem:
                if problem.status != 401 or attempt:
                    raise
        raise AssertionError("two attempts end in an answer or a problem")

    async def log_in(self, name: str, password: str, origin: str) -> dict[str, Any]:
        """A token for a password. Raises `ApiProblem`."""
        async with self._login_line() as client:
            said = {"auth_id": name, "auth_password": password, "origin": origin}
            found: dict[str, Any] = await self._managed(client, "login", LOGIN_SECONDS, said)
            return found

    def _own_token(self, again: bool) -> str | None:
        if self._token is None or again:
            self._token = read_secret(self._token_file) if self._token_file is not None else None
        return self._token

    @asynccontextmanager
    async def _login_line(self) -> AsyncIterator[AsyncClient]:
        if self._logins >= MAX_LOGIN_LINES:
            raise ApiProblem(429, "too many passwords are being checked", retry_after=5.0)
        self._logins += 1
        client = self._login_lines.pop() if self._login_lines else self._connected()
        keep = False
        try:
            yield client
            keep = True
        except ApiProblem as problem:
            keep = problem.status in (401, 429)
            raise
        finally:
            self._logins -= 1
            if keep and len(self._login_lines) < SPARE_LOGIN_LINES:
                self._login_lines.append(client)
            else:
                await client.close()

    def _connected(self) -> AsyncClient:
        return AsyncClient(self._endpoint, timeout=CALL_SECONDS, patience=PATIENCE_SECONDS)

    async def _managed(self, client: AsyncClient, command: str, timeout: float, said: dict[str, Any]) -> Any:
        try:
            return await client.manage(command, timeout=timeout, **said)
        except CallError as error:
            raise problem_of(error) from None
        except ValueError as error:
            raise ApiProblem(413, str(error)) from None
