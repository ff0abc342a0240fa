"""Whether a broker can be run as its file says.

Lives here: what is asked before anything is opened, and again when the file is read anew. Never here: the schema.
"""

from __future__ import annotations

from scale0.base.errors import ConfigError
from scale0.config import BrokerConfig, check_broker


def check_runnable(config: BrokerConfig) -> None:
    """Raise with every reason why not."""
    faults = [*check_broker(config), *not_yet(config)]
    if faults:
        raise ConfigError(faults)


def not_yet(config: BrokerConfig) -> list[str]:
    """What a file may ask for that this release cannot do: refusing is safer than leaving it out."""
    faults = []
    if config.curve:
        faults.append("curve: keys are not built yet; listen on loopback, or say insecure = true on a trusted network")
    if config.management.enabled:
        faults.append("management.enabled: the HTTP server is not built yet; use the command line")
    if config.store.startswith("postgresql:"):
        faults.append("store: PostgreSQL is not built yet; use sqlite")
    return faults
