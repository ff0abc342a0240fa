"""A streamed answer: a handler that yields, and a caller that reads meanwhile.

scale0 worker streaming.py:worker
scale0 call count.down 5
python streaming.py                 # the same from Python; an argument is the broker's endpoint
"""

import sys
import time
from collections.abc import Iterator

import scale0

worker = scale0.Worker()


@worker.service("count.down")
def down(start: int, pause: float = 0.1) -> Iterator[int]:
    """Each yielded value is sent at once."""
    for number in range(start, 0, -1):
        yield number
        time.sleep(pause)


if __name__ == "__main__":
    with scale0.Client(*sys.argv[1:]) as net:
        for number in net.stream("count.down", 5):
            print(number, flush=True)
    print("lift-off")
