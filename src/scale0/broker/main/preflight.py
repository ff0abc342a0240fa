"""Whether a broker can be run as its file says.

Lives here: what is asked before anything is opened, and again when the file is read anew. Never here: the schema.
"""

from __future__ import annotations

from pathlib import Path

from scale0.broker.edge.key_folder import KeyFolder
from scale0.config import BrokerConfig, check_broker
from scale0.kernel.edge.extras import install_command, missing
from scale0.kernel.edge.private_files import check
from scale0.kernel.errors import ConfigError


def check_runnable(config: BrokerConfig) -> None:
    """Raise with every reason why not."""
    faults = [*check_broker(config), *_store_faults(config), *_extra_faults(config)]
    if config.curve:
        faults += KeyFolder(Path(config.data_dir)).check()
    if faults:
        raise ConfigError(faults)


def _store_faults(config: BrokerConfig) -> list[str]:
    """What PostgreSQL needs. Its URL is a secret: no fault tells it."""
    if not is_postgres(config):
        return []
    faults = []
    if not config.group:
        faults.append("store: brokers that share a database are a group: set group, or use sqlite")
    return faults


def _extra_faults(config: BrokerConfig) -> list[str]:
    """What this configuration needs and is not installed."""
    needed = {"postgres": is_postgres(config), "http": config.management.enabled}
    keys = {"postgres": "store", "http": "management"}
    return [
        f"{keys[extra]}: packages are missing: {install_command([extra])}"
        for extra in missing(extra for extra, needs in needed.items() if needs)
    ]


def is_postgres(config: BrokerConfig) -> bool:
    """The store is a database that brokers share."""
    return config.store.startswith(("postgresql:", "postgres:"))


def check_broker_files(config: BrokerConfig, config_file: Path | None = None) -> None:
    """Before a broker starts. ConfigError: with every reason why it must not."""
    given = [Path(config.management.private_key)] if config.management.private_key else []
    if config_file is not None and holds_secret(config):
        given.append(config_file)
    check(Path(config.data_dir), given)


def holds_secret(config: BrokerConfig) -> bool:
    """True if somebody who reads the file learns one: a password, a key, or a hash to guess by."""
    urls = (config.store, config.segments)
    return bool(config.admins) or any("://" in url and ("@" in url or "password=" in url) for url in urls)
