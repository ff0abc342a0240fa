"""Runs dependent work concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple


class ConcurrentWork(NamedTuple):
    name: str
    makes: frozenset[str]
    needs: frozenset[str]
    do: Callable[[], None]


def do_all(
    works: Sequence[ConcurrentWork], abreast: int, told: Callable[[str, int], None], stop: Callable[[], None]
) -> None:
    """Run everything, at most `abreast` at a time; nothing starts before the work that makes its inputs has ended.

    `told` is called with the name of what starts and the number of ended works. After a failure `stop` must shorten
    what still runs; the error is raised when that has ended.
    """
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
    """Work whose inputs are all made, in order."""
    out: list[ConcurrentWork] = []
    for number, work in enumerate(left):
        makers = (*under_way, *left[:number])
        if not any(work.needs & maker.makes for maker in makers):
            out.append(work)
    return out
