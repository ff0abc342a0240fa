"""stage0: the supervisor of an agent. It starts the agent, and starts it again when it ends.

Lives here: one child, its signals and its restarts. Never here: anything of the agent; what this file imports stays in
memory for good. Invariants: at most one child at a time; a child that fails is started again after a growing wait; one
that asks for a fresh process gets it; when we are told to end, it ends first; if we die, it notices and ends by itself.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# Without `Final`, and run as a file: `typing` and the packages around us would be two megabytes for the whole life.
RELOAD_STATUS = 82
"""A child that ends so wants a fresh process."""
USAGE_STATUS = 2
"""A child that ends so cannot use its configuration, and has said why."""
FAILED_STATUS = 1
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that lived so long did well: the next wait is short again."""
QUICK_RELOAD_SECONDS = 5.0
"""A child that wants a fresh process sooner than this waits like one that failed."""
STOP_SECONDS = 10.0
"""How long a child has to end in order."""
MAX_READY_BYTES = 4_096
CHILD_MODULE = "scale0.monitoring.agent.edge.process"
NAMELESS = "agent"
"""What the agent is called in the log before it has said its name."""
STOPS = (signal.SIGTERM, signal.SIGINT)


class Stage0:
    """The supervisor."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._on_terminal = os.isatty(0)
        """Then SIGHUP means that the terminal is gone; else that a fresh agent is wanted."""
        self._child = 0
        self._born = 0.0
        self._ready: int | None = None
        self._lifeline: int | None = None
        self._was_ready = False
        self._stopping = False
        self._fresh = False
        self._failures = 0
        self._who = NAMELESS

    def run(self) -> int:
        """Until we are told to end; the exit status."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (*STOPS, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._heed)
        while not self._stopping:
            try:
                self._start()
            except OSError as error:
                # No process to be had just now, or the interpreter is being replaced: that passes, and we must not.
                say(f"the agent cannot be started: {error.strerror}", self._who)
                self._pause(FAILED_STATUS)
                continue
            status = self._watch()
            if status == USAGE_STATUS and not self._was_ready:
                return USAGE_STATUS
            self._pause(status)
        return 0

    def _heed(self, number: int, _frame: object) -> None:
        if number in STOPS or (number == signal.SIGHUP and self._on_terminal):
            self._stopping = True
        elif number == signal.SIGHUP:
            self._fresh = True

    def _start(self) -> None:
        ready, child_ready = os.pipe()
        child_lifeline, lifeline = os.pipe()
        for inherited in (child_ready, child_lifeline):
            os.set_inheritable(inherited, True)
        # -P: the folder that we were started in is no place for modules; anybody may be able to write there.
        command = [sys.executable, "-P", "-m", CHILD_MODULE, *self._arguments, str(child_ready), str(child_lifeline)]
        self._born = time.monotonic()
        self._fresh = False
        try:
            self._child = os.posix_spawn(
                sys.executable, command, os.environ, setpgroup=0, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
            )
        except OSError:
            os.close(ready)
            os.close(lifeline)
            raise
        finally:
            os.close(child_ready)
            os.close(child_lifeline)
        self._ready, self._lifeline = ready, lifeline
        self._poll.register(ready, select.POLLIN)

    def _watch(self) -> int:
        """Until the child has ended; its status, negative for a signal."""
        kill_at: float | None = None
        while True:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                break
            if (self._stopping or self._fresh) and kill_at is None:
                os.kill(self._child, signal.SIGTERM)
                kill_at = time.monotonic() + STOP_SECONDS
            left = None if kill_at is None else kill_at - time.monotonic()
            if left is not None and left <= 0:
                os.kill(self._child, signal.SIGKILL)
                left = STOP_SECONDS
            self._wait(left)
        self._child = 0
        self._hear()
        self._let_go()
        return os.waitstatus_to_exitcode(status)

    def _wait(self, seconds: float | None) -> None:
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1_000):
            if descriptor == self._ready:
                self._hear()
            else:
                try:
                    os.read(self._woken, 512)
                except BlockingIOError:
                    pass

    def _hear(self) -> None:
        """The child's one line: it works. Only the first is told on."""
        if self._ready is None:
            return
        line = os.read(self._ready, MAX_READY_BYTES)
        self._poll.unregister(self._ready)
        os.close(self._ready)
        self._ready = None
        if line and not self._was_ready:
            self._was_ready = True
            self._who = name_in(line)
            try:
                os.write(1, line)
            except OSError:
                pass  # nobody listens: that is no reason not to work

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _wait_after(self, status: int) -> float:
        lived = time.monotonic() - self._born
        if self._fresh or (status == RELOAD_STATUS and lived >= QUICK_RELOAD_SECONDS):
            self._failures = 0
            return 0.0
        self._failures = 1 if lived >= STEADY_SECONDS else self._failures + 1
        return wait_before(self._failures, os.urandom(1)[0] / 255)

    def _pause(self, status: int) -> None:
        """Wait before the next start, if there is one."""
        seconds = self._wait_after(status)
        until = time.monotonic() + seconds
        if not self._stopping:
            say(f"the agent {described(status)}; another is started in {seconds:.1f} s", self._who)
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wait(left)


def wait_before(failures: int, share: float) -> float:
    """Seconds before a start that follows so many failures; `share` spreads a fleet that failed at once."""
    ceiling = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 16))
    return ceiling * (0.5 + share / 2)


def described(status: int) -> str:
    """An end in words."""
    if status == RELOAD_STATUS:
        return "asks for a fresh process"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def say(text: str, who: str) -> None:
    """Write one log line to stderr; stage0 does not load `logging`, to stay small."""
    if os.environ.get("SCALE0_LOG_FORMAT") == "json":
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        plain = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)
        line = f'"time":"{moment}","level":"info","who":"{who}","logger":"scale0.stage0","text":"{plain}","ref":"{who}"'
        line = f"{{{line}}}"
    else:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime())},000 INFO {who} scale0.stage0 {text}"
    try:
        os.write(2, f"{line}\n".encode())
    except OSError:
        pass


def name_in(line: bytes) -> str:
    """The agent's name in its line `ready NAME …`; it is an identity, and so plain."""
    words = line.decode("ascii", "replace").split()
    return words[1] if len(words) > 1 and words[0] == "ready" else NAMELESS


if __name__ == "__main__":
    sys.exit(Stage0(sys.argv[1:]).run())
