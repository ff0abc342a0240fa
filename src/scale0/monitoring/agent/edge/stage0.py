"""stage0: the supervisor of an agent. It starts the agent, and restarts it when it ends.

It imports nothing of the agent, because its memory is used for the whole lifetime. Invariants: at most one child at a
time; a child that fails is restarted with backoff; a child that requests a restart gets it; on a signal the child ends
first; if stage0 dies, the child notices it and ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# Without `Final`, and run as a file: `typing` and the `scale0` packages would cost two megabytes.
RELOAD_STATUS = 82
"""The exit status of a child that requests a restart."""
USAGE_STATUS = 2
"""The exit status of a child that cannot use its configuration, and has logged why."""
FAILED_STATUS = 1
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that ran for this long resets the backoff."""
QUICK_RELOAD_SECONDS = 5.0
"""A child that requests a restart sooner than this waits like one that failed."""
STOP_SECONDS = 10.0
"""How long a child has to stop before it is killed."""
MAX_READY_BYTES = 4_096
CHILD_MODULE = "scale0.monitoring.agent.edge.process"
NAMELESS = "agent"
"""The agent's name in the log before it is ready."""
STOPS = (signal.SIGTERM, signal.SIGINT)


class Stage0:
    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._on_terminal = os.isatty(0)
        """Then SIGHUP means that the terminal was closed; else it requests a restart of the agent."""
        self._child = 0
        self._started_at = 0.0
        self._ready: int | None = None
        self._lifeline: int | None = None
        self._was_ready = False
        self._stopping = False
        self._restart_requested = False
        self._failures = 0
        self._who = NAMELESS

    def run(self) -> int:
        """Supervise until a signal ends us; the exit status."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (*STOPS, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        while not self._stopping:
            try:
                self._start()
            except OSError as error:
                # No process is available now, or the interpreter is being replaced: that is temporary.
                write_log(f"cannot start the agent: {error.strerror}", self._who)
                self._pause(FAILED_STATUS)
                continue
            status = self._watch()
            if status == USAGE_STATUS and not self._was_ready:
                return USAGE_STATUS
            self._pause(status)
        return 0

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in STOPS or (number == signal.SIGHUP and self._on_terminal):
            self._stopping = True
        elif number == signal.SIGHUP:
            self._restart_requested = True

    def _start(self) -> None:
        ready, child_ready = os.pipe()
        child_lifeline, lifeline = os.pipe()
        for inherited in (child_ready, child_lifeline):
            os.set_inheritable(inherited, True)
        # -P: never import modules from the working directory, which others may be able to write to.
        command = [sys.executable, "-P", "-m", CHILD_MODULE, *self._arguments, str(child_ready), str(child_lifeline)]
        self._started_at = time.monotonic()
        self._restart_requested = False
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
        """Wait for the end of the child; its status, negative for a signal."""
        kill_at: float | None = None
        while True:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                break
            if (self._stopping or self._restart_requested) and kill_at is None:
                os.kill(self._child, signal.SIGTERM)
                kill_at = time.monotonic() + STOP_SECONDS
            left = None if kill_at is None else kill_at - time.monotonic()
            if left is not None and left <= 0:
                os.kill(self._child, signal.SIGKILL)
                left = STOP_SECONDS
            self._wait(left)
        self._child = 0
        self._read_ready()
        self._close_lifeline()
        return os.waitstatus_to_exitcode(status)

    def _wait(self, seconds: float | None) -> None:
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1_000):
            if descriptor == self._ready:
                self._read_ready()
            else:
                try:
                    os.read(self._woken, 512)
                except BlockingIOError:
                    pass

    def _read_ready(self) -> None:
        """Forward the first child's ready line to stdout."""
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
                pass  # nobody reads our stdout

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _wait_after(self, status: int) -> float:
        lived = time.monotonic() - self._started_at
        if self._restart_requested or (status == RELOAD_STATUS and lived >= QUICK_RELOAD_SECONDS):
            self._failures = 0
            return 0.0
        self._failures = 1 if lived >= STEADY_SECONDS else self._failures + 1
        return wait_before(self._failures, os.urandom(1)[0] / 255)

    def _pause(self, status: int) -> None:
        """Wait before the next start, unless a signal ends us."""
        seconds = self._wait_after(status)
        until = time.monotonic() + seconds
        if not self._stopping:
            write_log(f"the agent {described(status)}; restart in {seconds:.1f} s", self._who)
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wait(left)


def wait_before(failures: int, share: float) -> float:
    """The backoff after so many failures; `share` (0 to 1) spreads a fleet that failed at the same time."""
    ceiling = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 16))
    return ceiling * (0.5 + share / 2)


def described(status: int) -> str:
    if status == RELOAD_STATUS:
        return "requested a restart"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def write_log(text: str, who: str) -> None:
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
    """The agent's name in its line `ready NAME …`; it is an identity, so it needs no escaping."""
    words = line.decode("ascii", "replace").split()
    return words[1] if len(words) > 1 and words[0] == "ready" else NAMELESS


if __name__ == "__main__":
    sys.exit(Stage0(sys.argv[1:]).run())
