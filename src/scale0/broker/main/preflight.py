"""Checks that a broker can run with its configuration, at the start and before a reload."""

from __future__ import annotations

from pathlib import Path

import msgspec

from scale0.broker.edge.key_folder import KeyFolder
from scale0.config import BrokerConfig, check_broker
from scale0.kernel.edge.extras import install_command, missing
from scale0.kernel.edge.private_files import check
from scale0.kernel.edge.secret_files import TOKEN_FILE
from scale0.kernel.errors import ConfigError
from scale0.storage.data_dir import make_directory


def with_keys_decided(config: BrokerConfig) -> BrokerConfig:
    """The configuration with `curve` set: a new data directory gets keys. It stays unset for one that
    was used and shows no keys: if the store does not either, the broker runs without (`open_curve`)."""
    folder = Path(config.data_dir)
    if config.curve is None and not config.insecure and (folder / TOKEN_FILE).exists():
        return config if not KeyFolder(folder).was_used() else msgspec.structs.replace(config, curve=True)
    return config if config.curve is not None else msgspec.structs.replace(config, curve=not config.insecure)


def check_runnable(config: BrokerConfig) -> None:
    """Raise an error with every reason why it cannot run."""
    decided = msgspec.structs.replace(config, curve=bool(config.curve))
    faults = [*check_broker(decided), *_store_faults(config), *_extra_faults(config)]
    if config.curve and not faults:
        make_directory(Path(config.data_dir))
        faults += KeyFolder(Path(config.data_dir)).check()
    if faults:
        raise ConfigError(faults)


def _store_faults(config: BrokerConfig) -> list[str]:
    """The requirements of PostgreSQL. Its URL is a secret, so no message contains it."""
    if not is_postgres(config):
        return []
    faults = []
    if not config.group:
        faults.append("store: brokers that share a database are a group: set group, or use sqlite")
    return faults


def _extra_faults(config: BrokerConfig) -> list[str]:
    needed = {"postgres": is_postgres(config), "http": config.management.enabled}
    keys = {"postgres": "store", "http": "management"}
    return [
        f"{keys[extra]}: packages are missing: {install_command([extra])}"
        for extra in missing(extra for extra, needs in needed.items() if needs)
    ]


def is_postgres(config: BrokerConfig) -> bool:
    return config.store.startswith(("postgresql:", "postgres:"))


def check_broker_files(config: BrokerConfig, config_file: Path | None = None) -> None:
    """Check before a broker starts. Raises ConfigError with every reason why it must not."""
    given = [Path(config.management.private_key)] if config.management.private_key else []
    if config_file is not None and holds_secret(config):
        given.append(config_file)
    check(Path(config.data_dir), given)


def holds_secret(config: BrokerConfig) -> bool:
    """True if the file contains a secret: a password, a key, or a hash that can be attacked."""
    urls = (config.store, config.segments)
    return bool(config.admins) or any("://" in url and ("@" in url or "password=" in url) for url in urls)
