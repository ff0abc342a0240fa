"""Topics of publications: a subscription is a prefix of the topics that it selects."""

from __future__ import annotations

from collections.abc import Collection, Iterator


def prefixes(topic: bytes, lengths: Collection[int]) -> Iterator[bytes]:
    """The prefixes of a topic that have one of these lengths, perhaps others too. The work is bounded by the topic,
    because subscribers choose the lengths."""
    for length in lengths if len(lengths) <= len(topic) else range(len(topic) + 1):
        if length <= len(topic):
            yield topic[:length]
