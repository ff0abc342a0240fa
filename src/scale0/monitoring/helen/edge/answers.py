"""What Helen's Asks find: rows of her store, signatures, and what the network says.

Lives here: slow or outside things that her machine may ask for, each off the loop. Never here: what she makes of it.
Invariant: every Ask is answered, if only with a Refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from scale0.config import ClientConfig, parse
from scale0.kernel import codes
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.effects import StoreQuery
from scale0.kernel.errors import ConfigError, Refusal
from scale0.kernel.log_context import about
from scale0.monitoring.helen.core.agent_connection import SignCertificate
from scale0.monitoring.helen.core.notifications import SubmitNotification
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.helen.edge.network_client import NetworkClient
from scale0.monitoring.pki.authority import CertificateAuthority

log = logging.getLogger("scale0.helen")

ASKS_SUFFIX: Final = ".asks"
"""Behind her identity: what she is called where she asks, in place of being asked."""
NO_NETWORK: Final = Refusal(codes.NOT_SERVING, "Helen is not on the network")
SIBLING: Final = re.compile(r"helen\.([A-Za-z0-9._:-]{1,128})\.check", re.ASCII)


class HelenAskAnswers:
    """Answers the Asks of one Helen."""

    def __init__(self, identity: str, commits: Commits, authority: CertificateAuthority) -> None:
        self._identity = identity
        self._commits = commits
        self._authority = authority
        self._asks: NetworkClient | None = None
        # One thread for each: a signature must not wait for a long list, nor the other way round.
        self._signer = ThreadPoolExecutor(1, thread_name_prefix="scale0-signer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="scale0-reader")

    async def find(self, ask: Any) -> Any:
        """The answer to one Ask."""
        try:
            return await self._find(ask)
        except Exception as error:
            log.exception("an Ask failed: please report this", extra=about(ask=type(ask).__name__))
            return Refusal(codes.FAILED, f"Helen failed: {type(error).__name__}")

    async def _find(self, ask: Any) -> Any:
        loop = asyncio.get_running_loop()
        match ask:
            case StoreQuery():
                return await loop.run_in_executor(self._reader, self._commits.look, ask.ask)
            case SignCertificate():
                wall = read_now().wall
                return await loop.run_in_executor(
                    self._signer, self._authority.enrol, ask.body, ask.cn, wall, ask.serial
                )
            case ForwardRequest():
                asks = self._asks
                return NO_NETWORK if asks is None else await asks.request(ask.service, ask.body, ask.timeout)
            case SubmitNotification():
                asks = self._asks
                return NO_NETWORK if asks is None else await asks.submit(ask.method, ask.params, ask.options)
        raise TypeError(f"nobody answers {ask!r}")

    def configure(self, part: bytes, backend: str) -> None:
        """Ask at the frontends that this part of the configuration names; first where `backend` is."""
        with contextlib.suppress(ConfigError):
            places = frontends(parse(part, "json", ClientConfig), backend)
            if places and (self._asks is None or set(places) != set(self._asks.endpoints)):
                self._replace(places)

    async def siblings(self) -> list[str] | None:
        """The other Helens of the network; None: nobody says."""
        asks = self._asks
        if asks is None:
            return None
        if asks.ended:
            asks = self._replace(asks.endpoints)
        try:
            names = await asks.services()
        except Refusal as refusal:
            log.debug("the network does not say who is there: %s", refusal, extra=about())
            return None
        found = (SIBLING.fullmatch(name) for name in names)
        return sorted({match[1] for match in found if match is not None} - {self._identity})

    def close(self) -> None:
        """Ask no more."""
        if self._asks is not None:
            self._asks.close()
            self._asks = None
        self._signer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _replace(self, places: tuple[str, ...]) -> NetworkClient:
        old, self._asks = self._asks, NetworkClient(self._identity + ASKS_SUFFIX, places)
        if old is not None:
            old.close()
        return self._asks


def frontends(part: ClientConfig, backend: str) -> tuple[str, ...]:
    """Where to ask: our own broker first, then as the configuration has them."""
    entries = [broker.endpoints for group in part.group_config for broker in group.brokers]
    entries.sort(key=lambda entry: entry.backend != backend)
    return tuple(dict.fromkeys(entry.frontend for entry in entries if entry.frontend))
