"""Test doubles for users of `scale0`: a network in process, without a broker.

    from scale0.testing import StubNetwork

The submodules are internal.
"""

from __future__ import annotations

from scale0.testing.stub import StubAnswer, StubCall, StubNetwork
from scale0.testing.stub_async import AsyncStub, AsyncStubSubmission, AsyncStubTask
from scale0.testing.stub_tasks import StubSubmission, StubTask

__all__ = [
    "AsyncStub",
    "AsyncStubSubmission",
    "AsyncStubTask",
    "StubAnswer",
    "StubCall",
    "StubNetwork",
    "StubSubmission",
    "StubTask",
]


def __dir__() -> list[str]:
    return __all__
