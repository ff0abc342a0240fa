"""The check `disk`: space and inodes of every real file system.

Lives here: which mounts count, and what is left on each. Never here: what uses the space. Invariant: a mount that hangs
costs its own share of the time and is told; the others are measured all the same.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Texts, is_literal, limits, wanted
from scale0.monitoring.checks.metrics import BYTES, PERCENT, Measurements, named, not_known, size
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

if TYPE_CHECKING:
    from scale0.monitoring.checks.check_run import CheckRun

MOUNT_SECONDS: Final = 2.0
"""How long one mount may take to answer: a file server that is gone never does."""
MAX_MOUNTS: Final = 100
"""Of one answer."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

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
    """Space and inodes, in percent and as numbers, of each mount."""
    gauges = Measurements()
    mounts = chosen(args, gauges)
    shares: dict[str, float] = {}
    for mount in mounts[:MAX_MOUNTS]:
        try:
            seconds = min(run.deadline.left(), MOUNT_SECONDS)
            room = run.aside.call(("disk", mount), partial(room_of, mount), seconds)
        except TimeoutError:
            gauges.blame(CRITICAL, f"{mount} does not answer")
        except OSError as error:
            gauges.blame(UNKNOWN, f"{mount}: {error.strerror or error}")
        else:
            if room is not None:
                shares[mount] = tell(mount, room, args, gauges)
    if len(mounts) > MAX_MOUNTS:
        gauges.blame(UNKNOWN, f"{len(mounts) - MAX_MOUNTS} mounts were not looked at: say which ones with include")
    if gauges.is_empty:
        return not_known("no file system matches")
    fullest = max(shares, key=lambda mount: shares[mount], default="")
    return gauges.finding(f"{fullest} is {shares.get(fullest, 0.0):.1f} % full, the fullest of {len(shares)}")


def room_of(mount: str) -> os.statvfs_result | None:
    """What the file system says; None of a file that is mounted over another, and of one without any size."""
    if not stat.S_ISDIR(os.stat(mount).st_mode):
        return None
    room = os.statvfs(mount)
    return room if room.f_blocks else None


def tell(mount: str, room: os.statvfs_result, args: Args, gauges: Measurements) -> float:
    """The metrics of one mount, and its percent, as `df` has it: of what an ordinary user may fill."""
    block = room.f_frsize
    used, free = (room.f_blocks - room.f_bfree) * block, room.f_bavail * block
    percent = 100.0 * used / (used + free) if used + free else 100.0
    warn, crit = limits(args)
    says = f"{mount} is {percent:.1f} % full, {size(free)} free"
    gauges.add(named("used_percent", mount), percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    gauges.add(named("used_bytes", mount), used, BYTES, low=0.0, high=float(used + free))
    warn, crit = limits(args, "free_")
    lacks = f"{mount} has {size(free)} free"
    top = float(used + free)
    gauges.add(named("free_bytes", mount), free, BYTES, warn=warn, crit=crit, low=0.0, high=top, says=lacks)
    if room.f_files:  # some file systems have no fixed number of them
        taken = room.f_files - room.f_ffree
        share = 100.0 * taken / (taken + room.f_favail) if taken + room.f_favail else 100.0
        warn, crit = limits(args, "inodes_")
        says = f"{mount}: {share:.1f} % of the inodes are in use"
        name = named("inodes_percent", mount)
        gauges.add(name, share, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    return percent


def chosen(args: Args, gauges: Measurements) -> list[str]:
    """Mount points to look at, sorted; what was named and is not mounted is a problem."""
    if args.include:
        every = {part.mountpoint for part in psutil.disk_partitions(all=True)}
        mounts = {mount for mount in every if wanted(mount, args.include, args.exclude)}
        for mount in args.include:
            if is_literal(mount) and mount not in every:
                gauges.blame(CRITICAL, f"nothing is mounted on {mount}")
        return sorted(mounts)
    return sorted(mount for mount in real_mounts(args.exclude_types) if wanted(mount, (), args.exclude))


def real_mounts(exclude_types: tuple[str, ...]) -> list[str]:
    """Each real file system once, by its shortest mount point; the root in any case, as in a container it is none."""
    best: dict[str, str] = {}
    for part in psutil.disk_partitions(all=False):
        if wanted(part.fstype, (), exclude_types):
            best[part.device] = min(best.get(part.device, part.mountpoint), part.mountpoint, key=len)
    mounts = list(best.values())
    return mounts if "/" in mounts else ["/", *mounts]
