"""Self-healing with live output: a web server dies, a check detects it, a task restarts it, the incident closes.

From the folder `examples`: python -m self_healing.run
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import Any

from local_network import LocalNetwork, Story, free_port, wait_for

import scale0

tell = Story().tell
START_SECONDS = 20.0


class WebServer:
    """The monitored web server, on a port of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # the worker starts it in a thread, the script ends it in another

    def start(self) -> int:
        """Start it, unless it runs: a task may run twice, and the second run must be harmless.

        It returns when the server serves, and raises OSError if it does not: the check is run again after the task.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                words = [sys.executable, "-m", "http.server", str(self.port), "--bind", "127.0.0.1"]
                self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + START_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                    return self._process.pid
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)

    def kill(self) -> int:
        """kill -9."""
        with self._lock:
            assert self._process is not None
            self._process.kill()
            self._process.wait()
            return self._process.pid


def healer(backend: str, web: WebServer) -> scale0.Worker:
    """A worker that can repair it. It runs where it can do that; here, in this process."""
    worker = scale0.Worker(backend)

    # Only an OSError is retried; the handler's --max-attempts limits it, and then a person must act.
    @worker.service("web.restart", retry_on=(OSError,))
    def restart(notice: dict[str, Any]) -> str:
        tell(f"web.restart is called: {notice['check']} of {notice['agent']} is {notice['state']}, {notice['message']}")
        return f"process {web.start()}"  # in earnest: systemctl restart, with check=True and a timeout

    return worker


def story(net: LocalNetwork, client: scale0.Client, web: WebServer) -> None:
    """The scenario."""

    def state_is(*wanted: str) -> dict[str, Any] | None:
        found = client.call("helen.checks", check="web", retry=True)["items"]
        return found[0] if found and found[0]["state"] in wanted else None

    def incident(*, is_open: bool) -> dict[str, Any] | None:
        found = client.call("helen.incidents", check="web", retry=True)["items"]
        return found[0] if found and (found[0]["closed"] is None) == is_open else None

    tell(f"the check says: {wait_for(lambda: state_is('ok'), 'the check is ok')['message']}")
    opened = time.monotonic()
    tell(f"kill -9 of the web server, process {web.kill()}")
    closed = wait_for(lambda: incident(is_open=False), "the incident closes")
    tell(f"the incident is closed, {closed['worst']} for {closed['closed'] - closed['opened']:.1f} s")
    tell(f"the check says: {wait_for(lambda: state_is('ok'), 'the check is ok')['message']}")
    tell(f"nobody was called, and {time.monotonic() - opened:.1f} s have passed")
    net.show("incidents", "--all")
    net.show("task", "list", "--method", "web.restart")


def main() -> None:
    """A whole network, for the duration of the scenario."""
    web = WebServer()
    with LocalNetwork() as net:
        ends = net.broker("b1")
        net.monitoring("web-1")
        worker = healer(ends["backend"], web)
        web.start()
        try:
            worker.start()
            tell("there are a broker, Helen, an agent, a web server, and a worker that can restart it")
            net.show("handler", "add", "heal", "--task", "web.restart", "--max-attempts", "3")
            where = ("--check", "tcp", "--arg", "host=127.0.0.1", "--arg", f"port={web.port}")
            when = ("--interval", "1", "--timeout", "1", "--max-attempts", "2")
            net.show("check", "add", "web", *where, *when, "--handler", "heal")
            print()
            with scale0.Client(ends["frontend"]) as client:
                story(net, client, web)
        finally:
            worker.stop()
            web.kill()


if __name__ == "__main__":
    main()
