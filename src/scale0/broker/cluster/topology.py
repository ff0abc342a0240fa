"""Who knows whom in a network of many groups: neighbours, and the circle of groups.

Lives here: what follows from the network document alone. Never here: who is alive, or a connection. Invariants: every
broker that has the document comes to the same circle; how many others one broker knows depends on the sizes of its own
group and of its neighbours, never on how many groups there are; from any group there is a way to any other.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from scale0.config import BrokerEntry, GroupConfig, NetworkDocument


def neighbours_of(document: NetworkDocument, group: str, identity: str) -> Iterator[BrokerEntry]:
    """Whom this broker dials: all of its group and of that group's fallback groups, and one across the circle."""
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
    """Those of these brokers that the document lists."""
    return (broker for group in document.group_config for broker in group.brokers if broker.identity in identities)


def across_of(document: NetworkDocument, own: GroupConfig, identity: str) -> BrokerEntry | None:
    """One broker of another group. Groups stand in a circle by their names; the first of a group knows the next one,
    the second the one after that, then 4, 8 and so on: so a group of a few brokers is a few steps from any other."""
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
    """True for groups of which one falls back to the other; what the document does not know counts as near."""
    fallbacks = {group.name: group.fallback_groups for group in document.group_config}
    if one == other or one not in fallbacks or other not in fallbacks:
        return True
    return other in fallbacks[one] or one in fallbacks[other]
