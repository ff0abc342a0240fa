"""A folder of keys that cannot be read is not an empty one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scale0.broker.edge.key_folder import MASS_KEYS, KeyFolder
from scale0.transport.edge.curve_certificates import CurveCertificate, new_certificate

NAMES = tuple(f"web-{number}" for number in range(6))


def certificate() -> CurveCertificate:
    pair = new_certificate()
    return CurveCertificate(public=pair.public, metadata={})


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path)
    made.init()
    for name in NAMES:
        made.store("backend", name, certificate())
    assert names(made) == list(NAMES)
    return made


def names(folder: KeyFolder) -> list[str]:
    return sorted(key.name for key in folder.table(0.0).keys)


# Promise: CURVE-19
def test_a_folder_that_is_away_is_an_error_and_no_revocation(folder: KeyFolder) -> None:
    away = folder.path.with_name("away")
    folder.path.rename(away)
    with pytest.raises(OSError, match=r"backends|frontends"):
        folder.table(0.0)
    away.rename(folder.path)
    assert names(folder) == list(NAMES)


# Promise: CURVE-19
def test_a_changed_file_that_cannot_be_opened_is_an_error_and_no_revocation(folder) -> None:
    path = folder.file_of("backend", NAMES[0])
    os.utime(path, (1, 1))
    path.unlink()
    path.symlink_to(path)  # ELOOP: it is there, and cannot be opened
    with pytest.raises(OSError, match=NAMES[0]):
        folder.table(0.0)


# Promise: CURVE-19
def test_most_files_removed_at_once_are_kept_until_an_operator_confirms(folder: KeyFolder) -> None:
    for name in NAMES[:MASS_KEYS]:
        folder.file_of("backend", name).unlink()
    for _ in range(2):
        with pytest.raises(OSError, match="scale0 keys forget-missing"):
            folder.table(0.0)
    folder.confirm_missing()
    assert names(folder) == list(NAMES[MASS_KEYS:])
    assert names(folder) == list(NAMES[MASS_KEYS:])


# Promise: CURVE-19
def test_keys_that_the_command_revokes_need_no_confirmation(folder: KeyFolder) -> None:
    for name in NAMES:
        assert folder.revoke("backend", name)
    assert names(folder) == []
    assert not folder.revoke("backend", NAMES[0])
    folder.store("backend", NAMES[0], certificate())
    assert names(folder) == [NAMES[0]]


def test_few_files_may_be_removed_by_hand(folder: KeyFolder) -> None:
    for name in NAMES[: MASS_KEYS - 1]:
        folder.file_of("backend", name).unlink()
    assert names(folder) == list(NAMES[MASS_KEYS - 1 :])
