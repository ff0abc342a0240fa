"""Answers to Asks: verifies passwords, reads files and fetches rows off the loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scale0.broker.admin.access import VerifyPassword
from scale0.broker.admin.commands import ReadHistory, ReadOwnFile
from scale0.broker.core.enrolment import LearnPeerKey, StoreKey
from scale0.broker.edge.curve import Curve
from scale0.broker.main.preflight import check_runnable, with_keys_decided
from scale0.config import BrokerConfig
from scale0.config.edge.files import read_config
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.passwords import verify_password
from scale0.kernel.effects import StoreQuery
from scale0.kernel.errors import ConfigError


class AskAnswers:
    def __init__(self, commits: Commits, config_file: Path | None, curve: Curve | None = None) -> None:
        self._commits = commits
        self._curve = curve
        self._config_file = config_file
        # One thread: hashing is expensive on purpose, and must leave a core for other work.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-answers")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="scale0-reader")

    async def find(self, ask: Any) -> Any:
        loop = asyncio.get_running_loop()
        match ask:
            case VerifyPassword():
                return await loop.run_in_executor(self._thread, verify_password, ask.password_hash, ask.password)
            case ReadHistory():
                return await self._commits.read(ask.ask)
            case StoreQuery():
                return await loop.run_in_executor(self._reader, self._commits.read_directly, ask.ask)
            case ReadOwnFile():
                return await loop.run_in_executor(self._thread, self._own_file)
            case StoreKey() if self._curve is not None:
                return await self._curve.enrol(ask)
            case LearnPeerKey() if self._curve is not None:
                return await self._curve.learn_peer_key(ask)
        raise TypeError(f"nobody answers {ask!r}")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _own_file(self) -> BrokerConfig | ConfigError:
        if self._config_file is None:
            return ConfigError(["this broker was started without a file: there is nothing to read again"])
        try:
            config = with_keys_decided(read_config(self._config_file, BrokerConfig))
            check_runnable(config)
        except ConfigError as error:
            return error
        return config
