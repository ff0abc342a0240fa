"""Debian's monitoring plugins under an agent: their results become states, an incident, and a call of a webhook.

From the folder `examples`: python -m nagios.run
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from local_network import PATIENCE_SECONDS, LocalNetwork, wait_for

PLUGINS = Path(__file__).with_name("plugins.zpl")
DAY_SECONDS = 86_400.0


@contextmanager
def pager() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A receiver of the webhook: its URL, and what it received."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)  # anything but 2xx: the notice is tried again, later and later
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", heard
        server.shutdown()


def show_notice(heard: queue.Queue[dict[str, Any]]) -> None:
    """The next notification that the webhook received."""
    notice = heard.get(timeout=PATIENCE_SECONDS)
    print(f"\nthe pager: {notice['kind']}: {notice['check']} of {notice['agent']} is {notice['state']}", flush=True)
    print(f"           {notice['message']}", flush=True)


def main() -> None:
    """A whole network, for the duration of the scenario."""
    with LocalNetwork() as net, pager() as (url, heard):
        net.folder.chmod(0o711)  # as root, the agent runs plugins as `nobody`, who must see the file
        backup = net.folder / "backup.tar"
        backup.touch()
        net.broker("b1")
        net.monitoring("web-1", PLUGINS.read_text())

        wait_for(lambda: "connected" in net.run("agents"), "the agent is connected")
        net.show("check", "run", "web-1", "users", "--arg", "warn=3")  # by hand: it moves no state
        net.show("handler", "add", "pager", "--webhook", url)
        limits = ("--arg", "warn=90000", "--arg", "crit=180000")
        what = ("--check", "file-age", "--arg", f"path={backup}", *limits)
        net.show("check", "add", "backup", *what, "--interval", "1", "--max-attempts", "2", "--handler", "pager")

        old = time.time() - 3 * DAY_SECONDS
        os.utime(backup, (old, old))
        print("\n(the backup is three days old from now on)")
        show_notice(heard)
        net.show("incidents")

        backup.touch()
        print("\n(a backup was made)")
        show_notice(heard)
        net.show("incidents", "--all")


if __name__ == "__main__":
    main()
