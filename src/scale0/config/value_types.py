"""The value types of configuration, each with its rule.

Every rule accepts any foreign text without error, and describes in words what it requires.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from scale0.config.secret_references import secret_name
from scale0.kernel.limits import MAX_HEARTBEAT_INTERVAL, MAX_LIVENESS, Limits
from scale0.kernel.names import is_identity, is_service_name

MAX_PORT: Final = 65_535
MAX_INTEGER: Final = 2**63 - 1
"""The largest signed 64-bit number: versions are sent in 8 bytes."""
MAX_NAME_CHARS: Final = 128
"""Names of checks, handlers, downtimes, silences and labels, and globs of them."""
MAX_LIMIT: Final = 1e18
"""The largest number in a threshold's range."""
MAX_RANGE_CHARS: Final = 80
"""The length of a range: two long numbers and signs."""
MAX_DEEPEST_JSON: Final = 512
"""The maximum of `max_json_depth`: decoding uses the stack."""
MAX_KEEP_DAYS: Final = 36_500
"""A hundred years."""
MAX_SECONDS: Final = 366 * 86_400.0
"""The longest time: as of a task, of a token, and between two runs of a check. Far below what a timer can count."""
MAX_CHECK_SECONDS: Final = 86_400.0
"""The longest that a check may take, as agents require."""
MAX_SEGMENT_SECONDS: Final = 86_400.0
"""One day: segments are grouped by day."""
MAX_SEGMENT_EVENTS: Final = 5_000_000
"""The exporter holds the events of one segment in memory."""
DEFAULT_BACKEND_PORT: Final = 5701
DEFAULT_HELEN_PORT: Final = 4166
ALL: Final = "all"

_MAX_SERVICE_BYTES: Final = Limits().max_service_bytes
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])"
_ADDRESS: Final = re.compile(rf"({_HOST})(?::([1-9][0-9]{{0,4}}))?", re.ASCII)
_TCP: Final = re.compile(rf"tcp://{_HOST}:([1-9][0-9]{{0,4}})", re.ASCII)
_LOCAL: Final = re.compile(r"(?:ipc|inproc)://[!-~]{1,100}", re.ASCII)
_BIND: Final = re.compile(rf"\*|{_HOST}|[0-9A-Fa-f:.]{{2,45}}", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CURVE_KEY: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", re.ASCII)
_RANGE_NUMBER: Final = r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?"
_RANGE: Final = re.compile(rf"@?(?:(?P<start>~|{_RANGE_NUMBER})?:)?(?P<end>{_RANGE_NUMBER}|(?<=:))", re.ASCII)
_LIMITS: Final = frozenset({"warn", "crit"})
_URL: Final = re.compile(rf"https?://{_HOST}(?::(?P<port>[1-9][0-9]{{0,4}}))?(?:[/?][!-~]{{0,2000}})?", re.ASCII)
_EMAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&*+/=?^_{|}~-]{1,64}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)
_HALF_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]{0,31}://.", re.ASCII)
_NOT_BARE: Final = re.compile(r"[\s'\"\\]")
_NOT_IN_A_LINE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


def is_line(text: str) -> bool:
    """True for text without control characters, lone surrogates and line breaks of any kind."""
    return text.isprintable() or not any(unicodedata.category(char) in _NOT_IN_A_LINE for char in text)


def split_address(text: str, default_port: int) -> tuple[str, int] | None:
    """`host` or `host:port` as a pair; None if it is neither."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    port = int(match[2]) if match[2] else default_port
    return (match[1], port) if port <= MAX_PORT else None


def is_endpoint(text: str) -> bool:
    """True for `tcp://host:port`, and for `ipc://` and `inproc://` with a name."""
    match = _TCP.fullmatch(text)
    if match is not None:
        return int(match[1]) <= MAX_PORT
    return _LOCAL.fullmatch(text) is not None


def is_curve_key(text: str) -> bool:
    """True for blank, and for the syntax of a CURVE key."""
    return not text or _CURVE_KEY.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    return split_address(text, DEFAULT_HELEN_PORT) is not None


def _is_service(text: str) -> bool:
    return text != ALL and is_service_name(text, _MAX_SERVICE_BYTES)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable() and " " not in text


def _is_store(text: str) -> bool:
    return text in ("sqlite", "memory") or (text.startswith(("postgresql://", "postgres://")) and is_line(text))


def _is_segments_location(text: str) -> bool:
    # With one slash it would be a directory, whose name might contain a key.
    return is_line(text) and ("://" not in text or _SCHEME.match(text) is not None) and not _HALF_URL.match(text)


def _is_command(words: object) -> bool:
    return isinstance(words, list) and bool(words) and bool(words[0])


def _is_entry(text: str) -> bool:
    return _is_name(text) and "/" not in text


def _is_reference(text: str) -> bool:
    agent, slash, check = text.partition("/")
    return is_identity(agent) and _is_entry(check) if slash else _is_entry(text)


def is_range(value: object) -> bool:
    """True for a finite number from 0 up, and for a range such as `10`, `10:`, `~:10`, `10:20` or `@10:20`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if not isinstance(value, str):
        return 0 <= value <= MAX_LIMIT
    found = _RANGE.fullmatch(value)
    if found is None or len(value) > MAX_RANGE_CHARS:
        return False
    start, end = found["start"] or "0", found["end"]
    low = -MAX_LIMIT if start == "~" else float(start)
    high = float(end) if end else MAX_LIMIT
    return -MAX_LIMIT <= low <= high <= MAX_LIMIT


def _is_url(text: str) -> bool:
    found = _URL.fullmatch(text)
    return found is not None and int(found["port"] or "0") <= MAX_PORT


def _is_url_or_secret(text: str) -> bool:
    return _is_url(text) or secret_name(text) is not None


def _are_thresholds(value: object) -> bool:
    return isinstance(value, dict) and all(
        name and isinstance(pair, dict) and pair and pair.keys() <= _LIMITS and all(map(is_range, pair.values()))
        for name, pair in value.items()
    )


class ValueRule(NamedTuple):
    """What a value must be, as a predicate and in words."""

    holds: Callable[[Any], bool]
    words: str
    secret: bool = False
    """A reason never repeats the value."""
    text: Literal["", "entry", "command"] = ""
    """A text in place of a list is its only entry, or a command line."""


def _rule(holds: Callable[[Any], bool], words: str, secret: bool = False, text: Any = "") -> Meta:
    return Meta(extra={"rule": ValueRule(holds, words, secret, text)})


def _or_blank(holds: Callable[[str], bool], words: str) -> Meta:
    return _rule(lambda text: not text or holds(text), f"blank, or {words}")


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _is_some_line(text: str) -> bool:
    return bool(text) and is_line(text)


def command_words(line: str) -> list[str] | None:
    """A command line split into words, by the quoting rules of a POSIX shell only."""
    try:
        return shlex.split(line)
    except ValueError:
        return None


def word_line(word: str) -> str:
    """A command line of this one word. With backslashes, because ZPL allows only one kind of quotes in a value."""
    return _NOT_BARE.sub(r"\\\g<0>", word)


_IDENTITY: Final = "1 to 128 characters of A-Z a-z 0-9 . _ : -"
_SERVICE: Final = f"a printable service name of at most {_MAX_SERVICE_BYTES} bytes, and not `all`"
_ENTRY: Final = f"1 to {MAX_NAME_CHARS} printable characters without spaces and /"
_ENDPOINT: Final = "an endpoint such as tcp://127.0.0.1:5702"
_THRESHOLDS: Final = 'limits by metric, each `warn`, `crit` or both: 90, "10:", "~:10", "10:20" or "@10:20"'

Identity = Annotated[str, _rule(is_identity, _IDENTITY)]
IdentityOrBlank = Annotated[str, _or_blank(is_identity, _IDENTITY)]
ServiceName = Annotated[str, _rule(_is_service, _SERVICE)]
ServiceNameOrBlank = Annotated[str, _or_blank(_is_service, _SERVICE)]
Services = tuple[ServiceName, ...] | Literal["all"]
Endpoint = Annotated[str, _rule(is_endpoint, _ENDPOINT)]
EndpointOrBlank = Annotated[str, _or_blank(is_endpoint, _ENDPOINT)]
BrokerAddress = Annotated[
    str,
    _rule(
        lambda text: is_endpoint(text) or _is_address(text),
        "host, host:port or an endpoint such as tcp://127.0.0.1:5701",
    ),
]
HelenAddress = Annotated[str, _rule(_is_address, "host or host:port")]
HelenAddresses = Annotated[tuple[HelenAddress, ...], _rule(bool, "at least one host:port", text="entry")]
Host = Annotated[str, _rule(_matches(_BIND), "an address, a host name or *")]
HostOrBlank = Annotated[
    str, _rule(lambda text: not text or _BIND.fullmatch(text) is not None, "blank, an address or a host name")
]
Line = Annotated[str, _rule(is_line, "one line of text without control characters")]
SomeLine = Annotated[str, _rule(_is_some_line, "one line of text, not blank, without control characters")]
Secret = Annotated[str, _rule(_is_some_line, "one line of text, not blank", secret=True)]
Store = Annotated[str, _rule(_is_store, "sqlite, memory or postgresql://…", secret=True)]
SegmentsLocation = Annotated[
    str, _rule(_is_segments_location, "blank, off, a folder, or a URL such as s3://bucket/prefix", secret=True)
]
CurveKeyOrBlank = Annotated[str, _rule(is_curve_key, "blank, or a public key of CURVE in 40 characters of Z85")]
HashOrBlank = Annotated[str, _or_blank(_matches(_SHA256), "a SHA-256 in 64 hex digits")]
LabelName = Annotated[str, _rule(_matches(_LABEL), "a letter or _, then at most 127 of A-Z a-z 0-9 _ . -")]
Command = Annotated[tuple[Line, ...], _rule(_is_command, "a program and its arguments", text="command")]
MonitoringName = Annotated[str, _rule(_is_entry, _ENTRY)]
MonitoringNameOrBlank = Annotated[str, _or_blank(_is_entry, _ENTRY)]
Glob = Annotated[str, _rule(_is_name, f"a glob of at most {MAX_NAME_CHARS} printable characters without spaces")]
Reference = Annotated[str, _rule(_is_reference, "the name of a check, or agent/check")]
Thresholds = Annotated[dict[str, Any], _rule(_are_thresholds, _THRESHOLDS)]
"""An open object, since metrics may have any name: {metric: {"warn": range, "crit": range}}."""
UrlOrBlank = Annotated[str, _or_blank(_is_url_or_secret, "an http(s) URL, or secret: and a file name")]
Email = Annotated[str, _rule(_matches(_EMAIL), "an e-mail address")]
Port = Annotated[int, Meta(ge=0, le=MAX_PORT)]
"""0 is any free port."""
Count = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
CountOrNone = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
JsonDepth = Annotated[int, Meta(ge=1, le=MAX_DEEPEST_JSON)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
HeartbeatInterval = Annotated[float, Meta(gt=0, le=MAX_HEARTBEAT_INTERVAL)]
Liveness = Annotated[int, Meta(ge=1, le=MAX_LIVENESS)]
CheckSeconds = Annotated[float, Meta(gt=0, le=MAX_CHECK_SECONDS)]
SegmentSeconds = Annotated[float, Meta(gt=0, le=MAX_SEGMENT_SECONDS)]
KeepDays = Annotated[int, Meta(ge=0, le=MAX_KEEP_DAYS)]
"""0: no limit."""
SegmentEvents = Annotated[int, Meta(ge=1, le=MAX_SEGMENT_EVENTS)]
Rate = Annotated[float, Meta(gt=0)]
HeartbeatShare = Literal["push", "pull", "off"]
