"""The topology of a network of many groups, computed from the network document alone.

Invariants: every broker with the same document computes the same topology; the number of neighbours depends on the
sizes of the broker's own group and of its fallback groups, not on the number of groups; every group can reach every
other.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from scale0.config import BrokerEntry, GroupConfig, NetworkDocument


def neighbours_of(document: NetworkDocument, group: str, identity: str) -> Iterator[BrokerEntry]:
    """The brokers to dial: all of the own group and of its fallback groups, and one across the ring."""
    groups = {one.name: one for one in document.group_config}
    own = groups.get(group)
    if own is None:
        return
    for one in (own, *(groups[name] for name in own.fallback_groups if name in groups)):
        yield from one.brokers
    across = across_of(document, own, identity)
    if across is not None:
        yield across


def listed_of(document: NetworkDocument, identities: Container[str]) -> Iterator[BrokerEntry]:
    return (broker for group in document.group_config for broker in group.brokers if broker.identity in identities)


def across_of(document: NetworkDocument, own: GroupConfig, identity: str) -> BrokerEntry | None:
    """One broker of another group. Groups form a ring, ordered by name; the first broker of a group knows the next
    group, the second the one after that, then 4, 8 and so on. A few steps therefore lead to any group.
    """
    circle = sorted(one.name for one in document.group_config if one.brokers)
    names = sorted(broker.identity for broker in own.brokers)
    if len(circle) < 2 or identity not in names:
        return None
    place = names.index(identity)
    spans = max(1, (len(circle) - 1).bit_length())
    there = circle[(circle.index(own.name) + (1 << place % spans)) % len(circle)]
    others = next(one for one in document.group_config if one.name == there).brokers
    return sorted(others, key=lambda broker: broker.identity)[place % len(others)]


def are_near(document: NetworkDocument, one: str, other: str) -> bool:
    """True for groups of which one falls back to the other; an unknown group counts as near."""
    fallbacks = {group.name: group.fallback_groups for group in document.group_config}
    if one == other or one not in fallbacks or other not in fallbacks:
        return True
    return other in fallbacks[one] or one in fallbacks[other]
