"""A CA in a temporary folder, and a fake Helen that implements only `enrol`."""

from __future__ import annotations

import time

import pytest

from scale0.monitoring.pki.authority import CertificateAuthority, create_authority
from tests.processes.pki.enrolment_helen import EnrolmentHelen


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "helen"


@pytest.fixture
def authority(folder) -> CertificateAuthority:
    return create_authority(folder, ["localhost", "127.0.0.1", "::1"], time.time())


@pytest.fixture
def helen(authority, folder):
    with EnrolmentHelen(authority, folder) as running:
        yield running
