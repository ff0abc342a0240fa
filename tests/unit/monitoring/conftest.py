"""A simulated Helen and a simulated agent for each test."""

from __future__ import annotations

import pytest

from tests.fakes.simulated_agent import SimulatedAgent
from tests.fakes.simulated_helen import SimulatedHelen


@pytest.fixture
def helen() -> SimulatedHelen:
    return SimulatedHelen()


@pytest.fixture
def connection(helen: SimulatedHelen) -> bytes:
    """Of the agent web-1, which is accepted."""
    return helen.agent()


@pytest.fixture
def new_agent() -> SimulatedAgent:
    """An agent that has not connected yet."""
    return SimulatedAgent()


@pytest.fixture
def agent(new_agent: SimulatedAgent) -> SimulatedAgent:
    """An agent that is accepted."""
    new_agent.accept()
    return new_agent
