"""Configuration: one schema, three formats (JSON, XML, ZPL), and the network document that brokers replicate.

Read `schema` for the keys, `formats` for parsing and rendering, `network_documents` and `key_paths` for operations on
documents. Nothing here does I/O, except `edge`.
"""

from scale0.config.broker_file import (
    WILDCARDS,
    AdminConfig,
    BrokerConfig,
    ExportConfig,
    HttpConfig,
    PeerShare,
    check_broker,
    is_loopback,
    management_errors,
)
from scale0.config.formats import (
    FORMATS,
    MAX_DOCUMENT_BYTES,
    format_named,
    format_of_file,
    parse,
    parse_existing,
    render,
)
from scale0.config.key_paths import changed_paths, patch
from scale0.config.monitoring import CheckDefinition, Downtime, Flapping, NotificationHandler, Silence, check_monitoring
from scale0.config.network import BrokerEntry, Endpoints, GroupConfig, NetworkDocument, ServicePolicy
from scale0.config.network_documents import (
    MAX_VERSION,
    check_document,
    client_config,
    differ_only_in_version,
    digest,
    document_bytes,
    first_document,
)
from scale0.config.schema import SCHEMAS, AgentConfig, ClientConfig, HelenConfig, MailServer, NoticeCommand, Plugin

__all__ = [
    "FORMATS",
    "MAX_DOCUMENT_BYTES",
    "MAX_VERSION",
    "SCHEMAS",
    "WILDCARDS",
    "AdminConfig",
    "AgentConfig",
    "BrokerConfig",
    "BrokerEntry",
    "CheckDefinition",
    "ClientConfig",
    "Downtime",
    "Endpoints",
    "ExportConfig",
    "Flapping",
    "GroupConfig",
    "HelenConfig",
    "HttpConfig",
    "MailServer",
    "NetworkDocument",
    "NoticeCommand",
    "NotificationHandler",
    "PeerShare",
    "Plugin",
    "ServicePolicy",
    "Silence",
    "changed_paths",
    "check_broker",
    "check_document",
    "check_monitoring",
    "client_config",
    "differ_only_in_version",
    "digest",
    "document_bytes",
    "first_document",
    "format_named",
    "format_of_file",
    "is_loopback",
    "management_errors",
    "parse",
    "parse_existing",
    "patch",
    "render",
]
