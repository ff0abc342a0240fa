"""The worker: a build in steps, each a task. One slot for each step, so that it can be seen how others wait.

scale0 worker builds.py
"""

import time

import scale0

worker = scale0.Worker()


@worker.service("build.fetch")
def fetch(files: int) -> str:
    """Long work reports its progress; at most ten reports a second are sent."""
    for done in range(files):
        scale0.progress(done / files, f"file {done + 1} of {files}")
        time.sleep(0.3)
    scale0.progress(1, "all there")
    return f"{files} files"


@worker.service("build.compile")
def compile_it(name: str) -> str:
    """Quick work."""
    return f"{name}.o"


@worker.service("build.upload")
def upload(name: str) -> str:
    """Work that depends on others may be retried: Retry requests it, with a delay. `max_attempts` limits it."""
    if scale0.attempt() < 3:
        raise scale0.Retry("the server is busy", after=0.2)
    return f"{name} is uploaded, at attempt {scale0.attempt()}"


@worker.service("build.test")
def test(name: str) -> str:
    """Work that can be cancelled checks `cancelled()`: a thread cannot be stopped from outside."""
    started = time.monotonic()
    while not scale0.cancelled():
        scale0.progress(0.5, "testing")
        time.sleep(0.05)
    raise scale0.GiveUp(f"stopped after {time.monotonic() - started:.1f} s")  # clean up first, where there is something


@worker.service("build.sign", give_up_on=(PermissionError,))
def sign(name: str) -> str:
    """Work that fails permanently: any other exception is retried, this one would occur again."""
    raise PermissionError(f"there is no key for {name}")
