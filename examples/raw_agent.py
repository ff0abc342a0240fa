"""A monitoring agent written from the line protocol alone: sockets and TLS, no scale0.

    python raw_agent.py HOST PORT CERTIFICATE KEY CA

It says hello in version 1, answers each `check` with how long it has run, and ends when Helen closes. `scale0 helen
init` makes the CA, `scale0 agent enrol` the other two files; then `scale0 check run NAME age` asks it.
"""

import json
import socket
import ssl
import sys
import time

started = time.time()


def main() -> None:
    """Connect, greet, answer."""
    host, port, certificate, key, ca = sys.argv[1:]
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as link,
        link.makefile("rb") as lines,
    ):
        link.sendall(b"hello 1 by-hand\n")
        print("ready", flush=True)
        for line in lines:
            command, *words = line.decode().rstrip("\r\n").split(" ")
            if command == "check":
                name, number, length = words
                lines.read(int(length) + 1)  # the args, and the end of their line
                link.sendall(result(name, number))
            elif command == "error":
                print("Helen says:", " ".join(words), flush=True)


def result(name: str, number: str) -> bytes:
    """One answer: a header with the length of what follows, JSON, and the end of the line."""
    seconds = time.time() - started
    found = {"state": "ok", "message": f"{name}: up for {seconds:.1f} s"}
    found["metrics"] = [{"name": "age", "value": seconds, "unit": "s"}]
    body = json.dumps(found).encode()
    return f"result {number} {name} {len(body)}\n".encode() + body + b"\n"


if __name__ == "__main__":
    main()
