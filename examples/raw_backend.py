"""A worker written from the protocol alone: pyzmq and JSON, no scale0.

It offers `upper`, which returns its text in capitals. Anything that can speak ZeroMQ can do this, in any language.
"""

import json
import signal
import sys
import time

import zmq

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5701"
SERVICES = ["upper"]
stopping = []


def say(socket, command, options, *bodies):
    """One message: the protocol's name, a command, its options as JSON, and bodies."""
    socket.send_multipart([b"SCALE0/1", command.encode(), json.dumps(options).encode(), *bodies])


def upper(text):
    """The work. By convention a body holds the arguments as a JSON array."""
    return text.upper()


def serve(socket):
    """One connection, from CHECKCONFIG until the broker is silent for three heartbeats, or a signal arrives."""
    interval, version, heard, sent = 1.0, None, time.monotonic(), time.monotonic()
    say(socket, "CHECKCONFIG", {"config_type": "json", "identity": "raw-backend", "services": SERVICES})
    while not stopping and time.monotonic() < heard + 3 * interval:
        if time.monotonic() >= sent + interval:
            say(socket, "HEARTBEAT", {"time": time.time(), "config_version": version})
            sent = time.monotonic()
        if not socket.poll(100):
            continue
        _protocol, command, options, *bodies = socket.recv_multipart()
        options, heard = json.loads(options or b"{}"), time.monotonic()
        match command:
            case b"CONFIG" | b"CONFIGACK":
                version = options["config_version"]
                say(socket, "READY", {"services": SERVICES, "time": time.time(), "config_version": version})
            case b"READYOK":
                interval = options["heartbeat_interval"]
                print("ready", options["identity"], flush=True)
            case b"REQUEST":
                result = upper(*json.loads(bodies[0]))
                say(socket, "REPLY", {"id": options["id"], "service": "upper"}, json.dumps(result).encode())
            case b"FORCENEGOTIATE":
                say(socket, "CHECKCONFIG", {"config_type": "json", "identity": "raw-backend", "services": SERVICES})
            case b"DISCONNECTERROR":
                print(options["code"], options["message"], file=sys.stderr)
                return options["code"] != 409  # 409: another has our identity, so do not come back
    if stopping:
        say(socket, "DISCONNECT", {})
    return not stopping


def stop(*_):
    """SIGTERM: leave in order."""
    stopping.append(True)


signal.signal(signal.SIGTERM, stop)
again = True
while again:
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 200)
        dealer.connect(ENDPOINT)
        again = serve(dealer)
