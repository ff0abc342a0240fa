"""Answers the asks of Helen's machine: reads of the store, signatures, requests and tasks for the network, and direct
deliveries of notifications.

Each ask gets an answer; if it fails, the answer is a Refusal. Slow work runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from scale0.config import ClientConfig
from scale0.kernel import codes
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.effects import StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.monitoring.helen.core.agent_connection import SignCertificate
from scale0.monitoring.helen.core.notifications import DeliverNotification, OtherQueue, SubmitNotification
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.helen.edge.network_client import NetworkClient
from scale0.monitoring.helen.edge.notifier import NotificationFailed, Notifier
from scale0.monitoring.pki.authority import CertificateAuthority
from scale0.transport.edge.client_keys import ClientKeys

log = logging.getLogger("scale0.helen")

CLIENT_SUFFIX: Final = ".asks"
"""Appended to her identity for the frontend session by which she sends requests."""
BOUND_SUFFIX: Final = ".bound"
"""Appended to the identity of a second session, to a queue that may have a task."""
REACH_SECONDS: Final = 5.0
"""How long such a session may take to connect."""
NO_NETWORK: Final = Refusal(codes.NOT_SERVING, "Helen is not connected to the network")
REPLICA_CHECK: Final = re.compile(r"helen\.([A-Za-z0-9._:-]{1,128})\.check", re.ASCII)


class HelenAskAnswers:
    def __init__(self, identity: str, commits: Commits, authority: CertificateAuthority, notifier: Notifier) -> None:
        self._identity = identity
        self._commits = commits
        self._authority = authority
        self._notifier = notifier
        self._client: NetworkClient | None = None
        self._keys: ClientKeys | None = None
        self._frontends_of: Mapping[str, Mapping[str, str]] = {}
        self._others: dict[str, NetworkClient] = {}
        """Clients of queues that may have a task, by owner, while they are used."""
        # One thread each: a signature must not wait for a long read, nor the other way round.
        self._signer = ThreadPoolExecutor(1, thread_name_prefix="scale0-signer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="scale0-reader")

    async def find(self, ask: Any) -> Any:
        try:
            return await self._find(ask)
        except Exception as error:
            log.exception(
                "internal error while answering %s; it is refused. Please report this traceback.",
                type(ask).__name__,
                extra=about(ask=type(ask).__name__),
            )
            return Refusal(codes.FAILED, f"internal error in Helen: {type(error).__name__}")

    async def _find(self, ask: Any) -> Any:
        loop = asyncio.get_running_loop()
        match ask:
            case StoreQuery():
                return await loop.run_in_executor(self._reader, self._commits.read_directly, ask.ask)
            case SignCertificate():
                wall = read_now().wall
                return await loop.run_in_executor(
                    self._signer, self._authority.enrol, ask.body, ask.cn, wall, ask.serial
                )
            case ForwardRequest():
                client = self._client
                return NO_NETWORK if client is None else await client.request(ask.service, ask.body, ask.timeout)
            case SubmitNotification():
                client = self._client
                return NO_NETWORK if client is None else await self._submit(client, ask)
            case DeliverNotification():
                return await self._deliver(ask)
        raise TypeError(f"unknown ask {ask!r}")

    async def _submit(self, client: NetworkClient, ask: SubmitNotification) -> str | Refusal | OtherQueue:
        answer = await client.submit(ask.owner, ask.method, ask.params, ask.options)
        endpoints = self._frontends_of.get(ask.owner, {})
        if not ask.bound or not endpoints or not isinstance(answer, OtherQueue):
            return answer
        # Only that queue knows the key, and the client may never return to it.
        other = self._others.get(ask.owner)
        if other is None:
            other = NetworkClient(self._identity + CLIENT_SUFFIX, endpoints, self._keys, BOUND_SUFFIX)
            self._others[ask.owner] = other
        other.users += 1
        try:
            reached = await other.request("scale0.ping", b"", REACH_SECONDS)
            if isinstance(reached, Refusal):
                return answer
            found = await other.submit(ask.owner, ask.method, ask.params, ask.options)
            # Another broker answers there, or the connection was lost again: `answer` is still true.
            is_lost = isinstance(found, OtherQueue) or (isinstance(found, Refusal) and found.code == codes.NOT_SERVING)
            return answer if is_lost else found
        finally:
            other.users -= 1
            if not other.users and self._others.get(ask.owner) is other:
                del self._others[ask.owner]
                other.close()

    async def _deliver(self, ask: DeliverNotification) -> str | Refusal:
        try:
            return await self._notifier.deliver(ask.handler, ask.notice)
        except NotificationFailed as error:
            log.warning(
                "the notification %s was not delivered by %s: %s",
                ask.notice.get("id"),
                ask.handler.name,
                error,
                extra=about(handler=ask.handler.name),
            )
            return Refusal(codes.FAILED if error.again else codes.MALFORMED, str(error))

    def configure(self, config: ClientConfig, backend: str, keys: ClientKeys | None) -> None:
        """Send requests to the frontends of this configuration, first to that of the broker at `backend`; `keys`: her
        pair, if it is stored in both roles."""
        self._frontends_of = frontends_of(config)
        endpoints, self._keys = frontends(config, backend), keys
        if endpoints and (self._client is None or endpoints.keys() != self._client.server_keys.keys()):
            self._replace(endpoints)

    async def replica_names(self) -> list[str] | None:
        """The identities of the other Helens of the network; None: unknown."""
        client = self._client
        if client is None:
            return None
        if client.ended:
            client = self._replace(client.server_keys)
        try:
            names = await client.services()
        except Refusal as refusal:
            log.debug("the list of services cannot be read: %s", refusal, extra=about())
            return None
        found = (REPLICA_CHECK.fullmatch(name) for name in names)
        return sorted({match[1] for match in found if match is not None} - {self._identity})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        for other in self._others.values():
            other.close()
        self._others.clear()
        self._signer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _replace(self, endpoints: Mapping[str, str]) -> NetworkClient:
        client = NetworkClient(self._identity + CLIENT_SUFFIX, endpoints, self._keys)
        old, self._client = self._client, client
        if old is not None:
            old.close()
        return client


def frontends(config: ClientConfig, backend: str) -> dict[str, str]:
    """The frontends of a configuration, with the keys of their brokers; that of our own broker first."""
    entries = [broker.endpoints for group in config.group_config for broker in group.brokers]
    entries.sort(key=lambda entry: entry.backend != backend)
    return {entry.frontend: entry.server_key for entry in entries if entry.frontend}


def frontends_of(config: ClientConfig) -> dict[str, dict[str, str]]:
    """The frontends of each owner of a queue, with the keys of their brokers: of a broker, or of those of a group."""
    found: dict[str, dict[str, str]] = {}
    for group in config.group_config:
        for broker in group.brokers:
            for owner in dict.fromkeys((broker.identity, group.name)):
                if owner and broker.endpoints.frontend:
                    found.setdefault(owner, {})[broker.endpoints.frontend] = broker.endpoints.server_key
    return found
