"""Logging to stderr, as text or JSON. Invariants: every record names its process and its subject
(`kernel/log_context.py`); tokens, passwords and keys are removed from every record; foreign text cannot move a
terminal's cursor or imitate another record."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Final, Literal, TextIO

import msgspec

from scale0.kernel.log_context import ABOUT

Form = Literal["text", "json"]

FORMS: Final = ("text", "json")
FORM_VARIABLE: Final = "SCALE0_LOG_FORMAT"
"""`text` or `json`; child processes use it, too."""
LEVEL_VARIABLE: Final = "SCALE0_LOG_LEVEL"
"""The default log level: `INFO` unless set."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
WHO_VARIABLE: Final = "SCALE0_LOG_WHO"
"""Set for child processes of a command: they log as it does, under this name."""
RESERVED: Final = frozenset({"time", "level", "who", "logger", "text", "ref", "trace"})
"""Fields of every record; no key of `about` has such a name."""
MAX_TEXT_CHARS: Final = 100_000
"""Longer text is cut, so that no single record fills a disk."""
HIDDEN: Final = "…"

_SECRETS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"s0_[0-9A-Za-z]{8,}"), f"s0_{HIDDEN}"),
    (re.compile(r"\bs1\.[A-Za-z0-9_-]{43}\.[A-Za-z0-9_-]{43}"), f"s1.{HIDDEN}"),
    (re.compile(r"\$argon2\w*\$[^\s\"']+"), f"$argon2${HIDDEN}"),
    (re.compile(r"(://[^/\s:@\"']*):[^/\s@\"']+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"(?i)\b(auth_password|auth_token|password|password_hash|passwd|scale0_session|x-csrf-token)\b"
            r"""(\\?["']?\s*[:=]\s*)(\\?"(?:[^"\\]|\\[^"])*\\?"?|'(?:[^'\\]|\\.)*'?|[^\s,;&"'}\])]+)"""
        ),
        rf"\1\2{HIDDEN}",
    ),
)
"""A last safeguard: code must not log any of these, and if it does, they must not appear."""

_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_PLAIN: Final = re.compile(r"[^\s\"\[\]=]+")
_COLOURS: Final = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31", "DEBUG": "2"}


def redacted(text: str) -> str:
    """Returns the text without anything that looks like a secret."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def cleaned(text: str) -> str:
    """Returns the text without secrets, control characters and lone surrogates, limited in length."""
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:MAX_TEXT_CHARS]} {HIDDEN} ({len(text) - MAX_TEXT_CHARS} characters more)"
    return redacted(text).translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def ids_of(record: logging.LogRecord) -> dict[str, str]:
    found = getattr(record, ABOUT, None)
    if not isinstance(found, Mapping):
        return {}
    return {str(word): cleaned(str(value)) for word, value in found.items()}


class TextLogFormatter(logging.Formatter):
    """For people: time, level, process, logger, text; the ids in brackets."""

    def __init__(self, who: str, colours: bool) -> None:
        super().__init__()
        self.who = who
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line; a traceback adds indented lines."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = record.levelname
        if self._colours and level in _COLOURS:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        text = cleaned(record.getMessage()).rstrip("\n")
        ids = " ".join(f"{word}={shown(value)}" for word, value in ids_of(record).items())
        head, *rest = [*text.split("\n"), *self.trace(record)]
        about = f" [{ids}]" if ids else ""
        first = f"{moment},{record.msecs:03.0f} {level} {self.who} {record.name} {head}{about}"
        return "\n".join([first, *(f"  {line}" for line in rest)])

    def trace(self, record: logging.LogRecord) -> list[str]:
        trace = trace_of(record, self)
        return trace.split("\n") if trace else []


class JsonLogFormatter(logging.Formatter):
    """For programs: one JSON object in one line."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self.who = who

    def format(self, record: logging.LogRecord) -> str:
        ids = ids_of(record)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, str] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "who": self.who,
            "logger": record.name,
            "text": cleaned(record.getMessage()),
            "ref": next(iter(ids.values()), self.who),
            **{word: value for word, value in ids.items() if word not in RESERVED},
        }
        if trace := trace_of(record, self):
            line["trace"] = trace
        return msgspec.json.encode(line).decode()


def shown(value: str) -> str:
    """Returns an id, quoted if it contains special characters."""
    return value if _PLAIN.fullmatch(value) else msgspec.json.encode(value).decode()


def trace_of(record: logging.LogRecord, form: logging.Formatter) -> str:
    trace = ""
    if record.exc_info and record.exc_info[0] is not None:
        trace = form.formatException(record.exc_info)
    if record.stack_info:
        trace = f"{trace}\n{record.stack_info}".strip("\n")
    return cleaned(trace)


def chosen_form(environment: Mapping[str, str]) -> Form:
    """Returns the format that the environment sets; anything but `json` is text."""
    return "json" if environment.get(FORM_VARIABLE) == "json" else "text"


def chosen_level(environment: Mapping[str, str]) -> str:
    level = environment.get(LEVEL_VARIABLE, "").upper()
    return level if level in LEVELS else "INFO"


def log_to_stderr(who: str, level: str | None = None, form: Form | None = None, stream: TextIO | None = None) -> None:
    """Configures this process to log to stderr under its name. A second call replaces the first."""
    target = sys.stderr if stream is None else stream
    form = form or chosen_form(os.environ)
    who = cleaned(who).replace("\n", " ") or "scale0"
    handler = logging.StreamHandler(target)
    if form == "json":
        handler.setFormatter(JsonLogFormatter(who))
    else:
        handler.setFormatter(TextLogFormatter(who, target.isatty() and "NO_COLOR" not in os.environ))
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one.formatter, TextLogFormatter | JsonLogFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level or chosen_level(os.environ))


def set_process_name(who: str) -> None:
    """Changes the process name in all following records."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextLogFormatter | JsonLogFormatter):
            handler.formatter.who = cleaned(who).replace("\n", " ")


def configure_logging() -> None:
    """In a child process of a command that logs to stderr: logs in the same way. Otherwise does nothing."""
    if who := os.environ.get(WHO_VARIABLE):
        log_to_stderr(who)
