"""Files that are written as a whole: an error names the file, and leaves the one before."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from scale0.cli.common.errors import command_error
from scale0.kernel.edge.secret_files import write_secret


def test_a_file_that_cannot_be_written_is_named_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_secret(path, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # nearly as a full disk
    try:
        with pytest.raises(OSError, match=rf"{path}'$"):
            write_secret(path, "longer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.name for each in tmp_path.iterdir()] == ["token"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_an_error_with_the_file_and_the_next_step(number: int) -> None:
    found = command_error(OSError(number, "No room", "/data/token"))
    assert found.message == "cannot write /data/token: No room"
    assert found.next_step
