"""The check `disk`: space and inodes of every real file system.

Invariant: a mount that hangs uses only its own share of the time and is reported; the others are measured nevertheless.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Texts, is_literal, is_selected, limits
from scale0.monitoring.checks.metrics import BYTES, PERCENT, Measurements, byte_size, metric_name
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

if TYPE_CHECKING:
    from scale0.monitoring.checks.check_run import CheckRun

MOUNT_SECONDS: Final = 2.0
"""How long one mount may take to answer: a dead file server never does."""
MAX_MOUNTS: Final = 100


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    include: Texts = ()
    exclude: Texts = ()
    exclude_types: Texts = ("squashfs", "iso9660", "udf", "erofs", "cramfs")
    warn: Limit = 80.0
    crit: Limit = 90.0
    free_warn: Limit = None
    free_crit: Limit = None
    inodes_warn: Limit = 80.0
    inodes_crit: Limit = 90.0


def measure(args: Args, run: CheckRun) -> CheckFinding:
    metrics = Measurements()
    mounts = select_mounts(args, metrics)
    shares: dict[str, float] = {}
    for mount in mounts[:MAX_MOUNTS]:
        try:
            seconds = min(run.deadline.left(), MOUNT_SECONDS)
            found = run.blocking_calls.call(("disk", mount), partial(statvfs_of, mount), seconds)
        except TimeoutError:
            metrics.add_problem(CRITICAL, f"{mount} does not answer")
        except OSError as error:
            metrics.add_problem(UNKNOWN, f"{mount}: {error.strerror or error}")
        else:
            if found is not None:
                shares[mount] = add_mount(mount, found, args, metrics)
    if len(mounts) > MAX_MOUNTS:
        metrics.add_problem(UNKNOWN, f"{len(mounts) - MAX_MOUNTS} mounts were not looked at: select some with include")
    if metrics.is_empty:
        return CheckFinding(UNKNOWN, "no file system matches")
    fullest = max(shares, key=lambda mount: shares[mount], default="")
    return metrics.finding(f"{fullest} is {shares.get(fullest, 0.0):.1f} % full, the fullest of {len(shares)}")


def statvfs_of(mount: str) -> os.statvfs_result | None:
    """The file system's numbers; None for a file that is mounted over another, and for a file system without size."""
    if not stat.S_ISDIR(os.stat(mount).st_mode):
        return None
    found = os.statvfs(mount)
    return found if found.f_blocks else None


def add_mount(mount: str, found: os.statvfs_result, args: Args, metrics: Measurements) -> float:
    """Add the metrics of one mount; returns its percentage like `df`: of the space that ordinary users may fill."""
    block = found.f_frsize
    used, free = (found.f_blocks - found.f_bfree) * block, found.f_bavail * block
    percent = 100.0 * used / (used + free) if used + free else 100.0
    warn, crit = limits(args)
    message = f"{mount} is {percent:.1f} % full, {byte_size(free)} free"
    metrics.add(
        metric_name("used_percent", mount), percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message
    )
    metrics.add(metric_name("used_bytes", mount), used, BYTES, low=0.0, high=float(used + free))
    warn, crit = limits(args, "free_")
    free_message = f"{mount} has {byte_size(free)} free"
    top = float(used + free)
    metrics.add(
        metric_name("free_bytes", mount), free, BYTES, warn=warn, crit=crit, low=0.0, high=top, message=free_message
    )
    if found.f_files:  # some file systems have no fixed number of inodes
        used_inodes = found.f_files - found.f_ffree
        share = 100.0 * used_inodes / (used_inodes + found.f_favail) if used_inodes + found.f_favail else 100.0
        warn, crit = limits(args, "inodes_")
        message = f"{mount}: {share:.1f} % of the inodes are in use"
        name = metric_name("inodes_percent", mount)
        metrics.add(name, share, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message)
    return percent


def select_mounts(args: Args, metrics: Measurements) -> list[str]:
    """The mount points to measure, sorted; a configured one that is not mounted is a problem."""
    if args.include:
        every = {part.mountpoint for part in psutil.disk_partitions(all=True)}
        mounts = {mount for mount in every if is_selected(mount, args.include, args.exclude)}
        for mount in args.include:
            if is_literal(mount) and mount not in every:
                metrics.add_problem(CRITICAL, f"nothing is mounted on {mount}")
        return sorted(mounts)
    return sorted(mount for mount in real_mounts(args.exclude_types) if is_selected(mount, (), args.exclude))


def real_mounts(exclude_types: tuple[str, ...]) -> list[str]:
    """Each real file system once, by its shortest mount point, and always the root: in a container it has no device."""
    best: dict[str, str] = {}
    for part in psutil.disk_partitions(all=False):
        if is_selected(part.fstype, (), exclude_types):
            best[part.device] = min(best.get(part.device, part.mountpoint), part.mountpoint, key=len)
    mounts = list(best.values())
    return mounts if "/" in mounts else ["/", *mounts]
