"""`scale0 WORDS…`, to which a signal comes at an exact moment: `python ended_at.py MOMENT COUNT SIGNAL WORDS…`.

The moments are those that Python names. The signal comes once, to the thread that is at this moment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from scale0.cli.main import main


class Moment:
    """The so-manieth time that something happens."""

    def __init__(self, count: int, number: int) -> None:
        self.left = count
        self.number = number

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            signal.pthread_kill(threading.get_ident(), self.number)


def watch(name: str, moment: Moment) -> None:
    """Before or after a fork, or at an event of Python's audit."""
    match name:
        case "before a fork":
            os.register_at_fork(before=moment.pass_by)
        case "after a fork":
            os.register_at_fork(after_in_parent=moment.pass_by)
        case _:
            sys.addaudithook(lambda event, _: moment.pass_by() if event == name else None)


if __name__ == "__main__":
    watch(sys.argv[1], Moment(int(sys.argv[2]), int(sys.argv[3])))
    del sys.argv[1:4]
    main()
