"""Handlers in processes of their own: for CPU-bound work, or work that may crash.

scale0 worker processes.py:worker
scale0 call primes.count 200000
scale0 call crash                   # costs this one call, and nothing else
"""

import os

import scale0

worker = scale0.Worker()


@worker.service("primes.count", slots=2, mode="process")
def count(below: int) -> int:
    """Count primes: two of these run at once, on two cores."""
    sieve = bytearray([1]) * max(below, 2)
    sieve[0:2] = b"\0\0"
    for number in range(2, int(below**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(sieve[number * number :: number]))
    return sum(sieve)


@worker.service("crash", mode="process")
def crash() -> None:
    """A crash of this process is not a crash of the worker."""
    os.abort()


if __name__ == "__main__":
    worker.run()
