"""Parts of a network document by key path: differences and patches.

A path is `group_config.east.brokers.east-1.services`: an entry of a list is addressed by its name. `[…]` contains a
name with dots, with `]` doubled; without brackets the longest existing name wins. A patched document has passed every
check of a parsed one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.config.network import NetworkDocument
from scale0.config.network_documents import check_document
from scale0.config.tree import LineNumbers, Reasons, excerpt
from scale0.config.validation import conform
from scale0.kernel.errors import ConfigError

MAX_PATH_CHARS: Final = 4096
"""One key path."""
MADE_BY_BROKERS: Final = ("version", "parent")
"""Keys that brokers set; a change cannot."""

_SEGMENT: Final = re.compile(r"\[((?:[^\]]|\]\])*)\]|([^.\[\]]+)")
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_NAME_KEYS: Final = ("name", "identity")

Change = tuple[str, Any, Any]
"""A path, the value before and the value after; `None` stands for nothing."""


class _Segment(NamedTuple):
    text: str
    exact: bool


def _segments(path: str) -> list[_Segment]:
    if len(path) > MAX_PATH_CHARS:
        raise ConfigError([f"path of {len(path)} characters, more than {MAX_PATH_CHARS}"])
    out: list[_Segment] = []
    at = 0
    while at < len(path):
        if out and path[at] == ".":
            at += 1
        elif out and path[at] != "[":
            break
        match = _SEGMENT.match(path, at)
        if match is None:
            break
        exact = match[2] is None
        out.append(_Segment(match[1].replace("]]", "]") if exact else match[2], exact))
        at = match.end()
    if not out or at < len(path) or path.endswith("."):
        raise ConfigError([f"{excerpt(path)}: not a key path"])
    return out


def _plain(document: NetworkDocument) -> Any:
    # Through JSON: a copy that shares nothing, with lists for tuples.
    return msgspec.json.decode(msgspec.json.encode(document))


def _key_of(entry: Any) -> str | None:
    if isinstance(entry, dict):
        for key in _NAME_KEYS:
            if isinstance(entry.get(key), str):
                return str(entry[key])
    return None


def _by_name(entries: Any) -> dict[str, Any] | None:
    """A list as a mapping, if the entries have distinct names."""
    if not isinstance(entries, list):
        return None
    names = [_key_of(entry) for entry in entries]
    out = {name: entry for name, entry in zip(names, entries, strict=True) if name is not None}
    return out if len(out) == len(entries) else None


def _joined(path: str, name: str) -> str:
    if not name or any(char in name for char in ".[]"):
        return f"{path}[{name.replace(']', ']]')}]"
    return f"{path}.{name}" if path else name


def _compare(path: str, before: Any, after: Any, out: list[Change]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        old, new = before, after
    else:
        named_before, named_after = _by_name(before), _by_name(after)
        if named_before is None or named_after is None:
            # By their JSON: to Python, 1 and 1.0 and true are equal.
            if _ENCODER.encode(before) != _ENCODER.encode(after):
                out.append((path, before, after))
            return
        old, new = named_before, named_after
        kept_before = [name for name in old if name in new]
        kept_after = [name for name in new if name in old]
        if kept_before != kept_after:
            out.append((path, before, after))
            return
    for name in [*old, *(name for name in new if name not in old)]:
        here = _joined(path, name)
        if name not in new or name not in old:
            out.append((here, old.get(name), new.get(name)))
        else:
            _compare(here, old[name], new[name], out)


def changed_paths(old: NetworkDocument, new: NetworkDocument) -> list[Change]:
    """Every path whose value differs, in the order of the document; a list in another order is one change."""
    out: list[Change] = []
    _compare("", _plain(old), _plain(new), out)
    return out


def _find(entries: list[Any], rest: Sequence[_Segment]) -> tuple[int, int]:
    """Position of the entry that the segments name, and how many of them name it; -1 if there is none."""
    names = {_key_of(entry): index for index, entry in enumerate(entries)}
    if rest[0].exact:
        return names.get(rest[0].text, -1), 1
    loose = next((index for index, segment in enumerate(rest) if segment.exact), len(rest))
    for count in range(loose, 0, -1):
        index = names.get(".".join(segment.text for segment in rest[:count]))
        if index is not None:
            return index, count
    return -1, 1


def _refused(path: str, why: str) -> ConfigError:
    return ConfigError([f"{path}: {why}"])


def _set_entry(entries: list[Any], key: str, name: str, value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise _refused(path, "an entry of this list is an object")
    known = _key_of(value)
    if known is None:
        value = {key: name, **value}
    elif known != name:
        raise _refused(path, f"the entry has the name {excerpt(known)}")
    names = [_key_of(entry) for entry in entries]
    if name in names:
        entries[names.index(name)] = value
    else:
        entries.append(value)


def _walk(root: Any, segments: list[_Segment], path: str, make: bool) -> tuple[Any, list[_Segment]]:
    """The object or list that holds the last step, and the segments of that step."""
    here, rest = root, segments
    while True:
        if isinstance(here, list):
            index, count = _find(here, rest)
            if count == len(rest):
                return here, rest
            if index < 0:
                raise _refused(path, f"there is no entry {excerpt(rest[0].text)}; write a name with dots in [ ]")
            here, rest = here[index], rest[count:]
        elif isinstance(here, dict):
            if len(rest) == 1:
                return here, rest
            key = rest[0].text
            if key not in here:
                if not make:
                    raise _refused(path, f"there is no {excerpt(key)}")
                here[key] = {}
            here, rest = here[key], rest[1:]
        else:
            raise _refused(path, f"{excerpt(rest[0].text)} is inside a plain value")


def _set(root: Any, path: str, value: Any) -> None:
    segments = _segments(path)
    if segments[0].text in MADE_BY_BROKERS:
        raise _refused(path, "made by the broker, not set")
    holder, rest = _walk(root, segments, path, make=True)
    if isinstance(holder, list):
        key = "identity" if segments[len(segments) - len(rest) - 1].text == "brokers" else "name"
        _set_entry(holder, key, ".".join(segment.text for segment in rest), value, path)
    else:
        holder[rest[0].text] = value


def _remove(root: Any, path: str) -> None:
    segments = _segments(path)
    if segments[0].text in MADE_BY_BROKERS:
        raise _refused(path, "made by the broker, not removed")
    holder, rest = _walk(root, segments, path, make=False)
    if isinstance(holder, list):
        index, _count = _find(holder, rest)
        if index < 0:
            raise _refused(path, "there is nothing to remove")
        del holder[index]
    elif rest[0].text in holder:
        del holder[rest[0].text]
    else:
        raise _refused(path, "there is nothing to remove")


def patch(
    document: NetworkDocument,
    set: Mapping[str, Any],
    remove: Sequence[str] = (),
) -> NetworkDocument:
    """The document with paths removed, then paths set; ConfigError with every reason if one of them is invalid."""
    plain = _plain(document)
    found: list[str] = []
    for path in remove:
        try:
            _remove(plain, path)
        except ConfigError as error:
            found += error.reasons
    for path, value in set.items():
        try:
            _set(plain, path, value)
        except ConfigError as error:
            found += error.reasons
    if found:
        raise ConfigError(found)
    out = conform(plain, NetworkDocument, Reasons(LineNumbers(dict)))
    errors = check_document(out)
    if errors:
        raise ConfigError(errors)
    return out
