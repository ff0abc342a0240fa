"""Work in its order, some of it abreast: while Spark's driver plans one table, its executors can compute another.

Lives here: what may begin when. Never here: what the work is. Invariants: nothing begins before all that makes what it
needs has ended; what fails ends the whole, once what is under way has ended too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple


class ConcurrentWork(NamedTuple):
    """Something to do."""

    name: str
    makes: frozenset[str]
    needs: frozenset[str]
    do: Callable[[], None]


def do_all(
    works: Sequence[ConcurrentWork], abreast: int, told: Callable[[str, int], None], stop: Callable[[], None]
) -> None:
    """All of it; `told` hears what begins, and how many have ended. `stop` must hasten the end of what is under way."""
    left, ended = list(works), 0
    under_way: dict[Future[None], ConcurrentWork] = {}
    with ThreadPoolExecutor(abreast, thread_name_prefix="scale0-table") as pool:
        try:
            while left or under_way:
                for work in ready(left, list(under_way.values()))[: abreast - len(under_way)]:
                    left.remove(work)
                    told(work.name, ended)
                    under_way[pool.submit(work.do)] = work
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    del under_way[future]
                    ended += 1
                    future.result()
        except BaseException:
            if under_way:
                stop()
            raise


def ready(left: Sequence[ConcurrentWork], under_way: Sequence[ConcurrentWork]) -> list[ConcurrentWork]:
    """Those of which nothing that they need is still to be made, in their order."""
    out: list[ConcurrentWork] = []
    for number, work in enumerate(left):
        makers = (*under_way, *left[:number])
        if not any(work.needs & maker.makes for maker in makers):
            out.append(work)
    return out
