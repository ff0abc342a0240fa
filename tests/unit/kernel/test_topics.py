"""The prefixes of a topic that subscriptions may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.topics import prefixes


# Promise: OWN-4
@given(st.binary(max_size=12), st.sets(st.integers(0, 40)))
def test_every_prefix_of_a_length_that_is_subscribed_to_is_found_and_no_length_costs_more(
    topic: bytes, lengths: set[int]
) -> None:
    found = list(prefixes(topic, lengths))
    assert {topic[:length] for length in lengths if length <= len(topic)} <= set(found)
    assert all(topic.startswith(prefix) for prefix in found)
    assert len(found) == len(set(found)) <= len(topic) + 1
