"""Calls from coroutines. First: scale0 up, and scale0 worker hello_worker.py:worker."""

import asyncio
import sys

import scale0


async def main(*endpoint: str) -> None:
    """Ten calls at once: calls of one iteration of the event loop are sent as one message."""
    async with scale0.AsyncClient(*endpoint) as net:
        greetings = await asyncio.gather(*(net.call("hello", f"number {i}") for i in range(10)))
        print(*greetings, sep="\n")


asyncio.run(main(*sys.argv[1:]))
