"""The pids cgroup of this process is found from /proc."""

from __future__ import annotations

import pytest

from scale0.monitoring.agent.edge.cgroup import find_pids_folder

V1 = "36 30 0:31 / /sys/fs/cgroup/pids rw,relatime shared:17 - cgroup cgroup rw,pids"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = V1 + "\n42 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("memberships", "mounts", "found"),
    [
        ("8:pids:/\n0::/", HYBRID, ("/sys/fs/cgroup/pids", False)),
        ("8:cpu,pids:/system.slice/a.service\n0::/x", HYBRID, ("/sys/fs/cgroup/pids/system.slice/a.service", False)),
        ("0::/system.slice/a.service", V2, ("/sys/fs/cgroup/system.slice/a.service", True)),
        ("0::/", V2, ("/sys/fs/cgroup", True)),
        ("8:pids:/docker/x/y", V1.replace(" / /sys", " /docker/x /sys"), ("/sys/fs/cgroup/pids/y", False)),
        ("8:pids:/elsewhere", V1.replace(" / /sys", " /docker/x /sys"), None),
        ("", V2, None),
        ("0::/", "nonsense\n\n1 2 3", None),
        ("", "", None),
    ],
)
def test_our_own_folder_is_found(memberships, mounts, found):
    assert find_pids_folder(memberships, mounts) == found
