"""Removes the content of secrets from the findings of checks: text shows `secret:NAME` in its place.

A check may cut, escape or normalise a text before it shows it, so a secret is found by its pieces: each PIECE_CHARS
characters of each of its forms, in any case of ASCII letters. Invariant: a message shows no PIECE_CHARS consecutive
characters of a secret or of a form of it, except http:// or https://; of a shorter secret, it does not show the whole.
"""

from __future__ import annotations

import html
import json
import re
import string
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final
from urllib.parse import quote, quote_plus, unquote

import msgspec

from scale0.history.events.columns import EventMetric
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, MAX_METRIC_NAME_CHARS, CheckFinding

PIECE_CHARS: Final = 8
"""This many consecutive characters of a secret are hidden wherever they are."""
WORD_CHARS: Final = 4
"""Words of a secret with at least this many characters are hidden, and its first or last characters next to a cut."""
URL_SAFE: Final = "/%:=&?~#+!$,;'@()*[]"
"""Characters that are commonly not percent-encoded in a URL."""

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_CUT: Final = re.compile(r"…|\.\.\.")
_SCHEME: Final = re.compile("https?://", re.IGNORECASE)
_BETWEEN_WORDS: Final = re.compile(r"[^\w.%~+-]+")

_BySize = dict[int, set[str]]


class HiddenSecrets:
    """The secrets that one run of a check has, by content, each with the reference that is shown in its place."""

    def __init__(self, references: Mapping[str, str]) -> None:
        longest_last = sorted(references.items(), key=lambda pair: len(pair[0]))
        self._secrets = [_Secret(content, reference) for content, reference in longest_last]

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def in_message(self, text: str) -> str:
        return self._hide(text)[:MAX_MESSAGE_CHARS]

    def in_finding(self, finding: CheckFinding, with_metrics: bool) -> CheckFinding:
        """The finding with references in place of secrets, also in names and units of metrics if `with_metrics`."""
        metrics = tuple(map(self._in_metric, finding.metrics)) if with_metrics else finding.metrics
        return msgspec.structs.replace(finding, message=self.in_message(finding.message), metrics=metrics)

    def _in_metric(self, metric: EventMetric) -> EventMetric:
        name = self._hide(metric.name)[:MAX_METRIC_NAME_CHARS]
        unit = metric.unit
        if unit and (self._hide(unit) != unit or any(secret.contains(unit) for secret in self._secrets)):
            unit = None
        return msgspec.structs.replace(metric, name=name, unit=unit)

    def _hide(self, text: str) -> str:
        folded = text.translate(_LOWER)
        shown = [""] * len(text)
        for secret in self._secrets:
            for start, end in secret.spans(folded):
                shown[start:end] = [secret.reference] * (end - start)
        if not any(shown):
            return text
        runs = groupby(zip(shown, text, strict=True), key=lambda pair: pair[0])
        return "".join(reference or "".join(char for _, char in run) for reference, run in runs)


class _Secret:
    def __init__(self, content: str, reference: str) -> None:
        self.reference = reference
        forms = {form.translate(_LOWER) for form in _forms_of(content)}
        self._every_form = "\n".join(forms)
        self._pieces: _BySize = {}
        self._heads: _BySize = {}
        self._tails: _BySize = {}
        for form in forms:
            for piece in _pieces_of(form):
                self._pieces.setdefault(len(piece), set()).add(piece)
            for size in _sizes_at_cut(form):
                self._tails.setdefault(size, set()).add(form[-size:])
                if size >= _scheme_chars(form):
                    self._heads.setdefault(size, set()).add(form[:size])
        for text in (content, unquote(content)):
            for word in _BETWEEN_WORDS.split(text.translate(_LOWER)[_scheme_chars(text) :]):
                if WORD_CHARS <= len(word) < PIECE_CHARS:
                    self._pieces.setdefault(len(word), set()).add(word)

    def contains(self, text: str) -> bool:
        """True for a part of it that is no short one."""
        return len(text) >= WORD_CHARS and text.translate(_LOWER) in self._every_form

    def spans(self, folded: str) -> Iterator[tuple[int, int]]:
        """Where it is in a text in lower case, and short parts of it next to a cut."""
        for size, pieces in self._pieces.items():
            for start in range(len(folded) - size + 1):
                if folded[start : start + size] in pieces:
                    yield start, start + size
        cuts = [cut.span() for cut in _CUT.finditer(folded)]
        ends = {len(folded.rstrip("\ufffd")), min(len(folded), MAX_MESSAGE_CHARS), *(start for start, _ in cuts)}
        for size, heads in self._heads.items():
            yield from ((end - size, end) for end in ends if end >= size and folded[end - size : end] in heads)
        starts = {0, *(end for _, end in cuts)}
        for size, tails in self._tails.items():
            yield from ((start, start + size) for start in starts if folded[start : start + size] in tails)


def _forms_of(content: str) -> set[str]:
    """The content, and how programs write it in other texts."""
    escaped = repr(content)[1:-1]
    in_json = json.dumps(content)[1:-1]
    return {
        content,
        content.upper(),
        content.lower(),
        escaped,
        escaped.replace("\\'", "'"),
        escaped.replace("\\'", "'").replace("'", "\\'"),
        repr(content.encode())[2:-1],
        in_json,
        in_json.replace("/", "\\/"),
        json.dumps(content, ensure_ascii=False)[1:-1],
        quote(content),
        quote(content, safe=""),
        quote(content, safe=URL_SAFE),
        quote_plus(content),
        unquote(content),
        html.escape(content, quote=False),
        html.escape(content),
        html.escape(content).replace("&#x27;", "&apos;"),
        html.escape(content).replace("&#x27;", "&#39;"),
    }


def _pieces_of(form: str) -> Iterator[str]:
    """What is hidden of a form. The scheme of a web URL alone is not hidden: other URLs have it, too."""
    scheme = _scheme_chars(form)
    yield form[: max(PIECE_CHARS, scheme + 1)]
    for start in range(max(1, scheme + 1 - PIECE_CHARS), len(form) - PIECE_CHARS + 1):
        yield form[start : start + PIECE_CHARS]


def _scheme_chars(text: str) -> int:
    scheme = _SCHEME.match(text)
    return scheme.end() if scheme else 0


def _sizes_at_cut(form: str) -> range:
    """Of parts next to a cut that are hidden though they are no pieces."""
    return range(min(WORD_CHARS, (len(form) + 1) // 2), min(PIECE_CHARS, len(form)))
