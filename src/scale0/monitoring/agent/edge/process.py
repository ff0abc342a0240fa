"""The agent process: it starts everything in order, and stops it in reverse.

`stage0` starts it; it notifies stage0 when it is ready, and ends when stage0 does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Any, Final

from scale0 import __version__
from scale0.config import AgentConfig
from scale0.config.edge.files import read_config
from scale0.kernel.edge.log_setup import log_to_stderr, set_process_name
from scale0.kernel.edge.private_files import check as check_files
from scale0.kernel.edge.secret_files import SecretDirectory
from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.kernel.errors import ConfigError, Scale0Error
from scale0.kernel.log_context import about
from scale0.monitoring.agent.core.check_schedule import CheckSchedule
from scale0.monitoring.agent.core.session import AgentSession
from scale0.monitoring.agent.edge.agent import AgentFacts, AgentRuntime, ScheduleFile, read_boot_id
from scale0.monitoring.agent.edge.certificate import read_certificate, renew_forever
from scale0.monitoring.agent.edge.lua_pool import LuaChecks
from scale0.monitoring.agent.edge.running_checks import CheckProcesses, CheckRegistry, NoCheckProcesses, RunningChecks
from scale0.monitoring.agent.edge.spool import Spool
from scale0.monitoring.agent.edge.stage0 import RELOAD_STATUS, USAGE_STATUS
from scale0.monitoring.agent.edge.tls_client import TlsClient, client_context, described
from scale0.monitoring.checks.registry import built_in
from scale0.storage.data_dir import DirectoryLock, make_directory
from scale0.storage.interface import StoreRefused

log = logging.getLogger("scale0.agent")

SPOOL_FOLDER: Final = "spool"
LOCK_SECONDS: Final = 5.0
"""Processes of an agent that was killed may hold the lock for a moment."""
NAME_THREADS: Final = 2
"""For name lookups: a name server that hangs must not block writes to the disk."""
CLOSE_SECONDS: Final = 5.0
"""How long checks have to end when the agent does."""
LOCK_LOOK_SECONDS: Final = 0.1
FAILED_STATUS: Final = 1
NAMELESS: Final = "agent"
"""The name in the log before the certificate is read."""


def main(arguments: list[str]) -> int:
    """`FILE READY LIFELINE`: the configuration, and two descriptors of stage0. Returns the exit status."""
    file, ready, lifeline = arguments
    log_to_stderr(NAMELESS)
    try:
        config = read_config(Path(file), AgentConfig)
        check_certificates(config)
        check_files(Path(config.data_dir), [Path(config.private_key)])
        lock = lock_directory(Path(config.data_dir))
        try:
            return asyncio.run(serve(config, Path(file), int(ready), int(lifeline)))
        finally:
            lock.close()
    except Scale0Error as error:
        for reason in error.reasons if isinstance(error, ConfigError) else [str(error)]:
            log.error("%s", reason, extra=about())
        return USAGE_STATUS
    except Exception as error:
        log.critical("the agent ends: %s: %s", type(error).__name__, error, extra=about())
        return FAILED_STATUS


def check_certificates(config: AgentConfig) -> None:
    for key in ("certificate", "private_key", "server_ca"):
        path = Path(getattr(config, key))
        if not os.access(path, os.R_OK):
            raise ConfigError([f"{key}: {path} does not exist or is not readable; `scale0 agent enrol` creates it"])
    try:
        context_of(config)
    except OSError as error:
        raise ConfigError([f"certificate, private_key, server_ca: OpenSSL rejects them: {described(error)}"]) from error


def context_of(config: AgentConfig) -> ssl.SSLContext:
    return client_context(config.certificate, config.private_key, config.server_ca)


def lock_directory(folder: Path) -> DirectoryLock:
    """Lock the data directory; a process of an agent that was killed just now may still hold the lock."""
    make_directory(folder)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return DirectoryLock(folder)
        except StoreRefused:
            if time.monotonic() >= until:
                raise
            time.sleep(LOCK_LOOK_SECONDS)


async def serve(config: AgentConfig, file: Path, ready: int, lifeline: int) -> int:
    loop = asyncio.get_running_loop()
    identity = read_certificate(Path(config.certificate)).identity
    set_process_name(identity)
    folder = Path(config.data_dir)
    plugins, lua = check_processes(config)
    checks = CheckRegistry(plugins, built_in(folder, config.log_paths), lua)
    names, disk = ThreadPool(NAME_THREADS, loop), ThreadPool(1, loop)
    addresses = [(host.strip("[]"), port) for host, port in config.helen_addresses()]
    spool = Spool(folder / SPOOL_FOLDER, secrets.token_hex(8), read_boot_id(), config.spool_bytes, config.spool_age)
    stored_secrets = SecretDirectory(Path(config.secrets_dir or folder / "secrets"))
    runs = RunningChecks(checks.find, loop, config.max_checks, stored_secrets)
    facts = AgentFacts(config.labels, lambda: checks.names, config.check_timeout, __version__)
    rng = random.Random(secrets.randbits(64))
    session = AgentSession(addresses, __version__, rng)
    agent = AgentRuntime(session, CheckSchedule(identity), spool, ScheduleFile(folder), runs, facts, disk, loop)
    renewal = loop.create_task(renew_forever(Path(config.certificate), file, rng))
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.end)
        loop.set_exception_handler(lambda _loop, context: fail_loudly(agent, context))
        loop.add_reader(lifeline, stage0_is_gone, agent, lifeline, loop)
        agent.start(TlsClient(lambda: context_of(config), agent, names, loop))
        # Objects that exist now live to the end: the garbage collector need not visit them again.
        gc.collect()
        gc.freeze()
        os.write(ready, f"ready {identity} {' '.join(config.helen)}\n".encode())
        os.close(ready)
        return RELOAD_STATUS if await agent.ending else 0
    finally:
        agent.stop()
        renewal.cancel()
        runs.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(renewal, runs.closed(), return_exceptions=True), CLOSE_SECONDS)
        plugins.close()
        lua.close()
        write_to_disk(spool)


def fail_loudly(agent: AgentRuntime, context: dict[str, Any]) -> None:
    """An exception in a callback: a timer may be lost, so the agent must not continue as if it worked."""
    error = context.get("exception")
    log.critical("internal error: %s", context.get("message"), exc_info=error, extra=about())
    if error is not None:
        agent.fail(error)


def stage0_is_gone(agent: AgentRuntime, lifeline: int, loop: asyncio.AbstractEventLoop) -> None:
    """Without stage0 there would be no restart, and it may start a second agent."""
    loop.remove_reader(lifeline)
    log.error("stage0 has ended", extra=about())
    agent.end()


def check_processes(config: AgentConfig) -> tuple[CheckProcesses, CheckProcesses]:
    plugins: CheckProcesses = NoCheckProcesses()
    if config.plugins:
        from scale0.monitoring.agent.edge.plugins import Plugins  # noqa: PLC0415  # saves memory without plugins

        plugins = Plugins(config.plugins, config.plugin_user)
    return plugins, LuaChecks(config.checks_dir, config.plugin_user)


def write_to_disk(spool: Spool) -> None:
    """Before the end: sync to disk what Helen has not stored."""
    spool.to_disk()
    work = spool.begin_sync()
    if work is not None:
        work()
    spool.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
