"""A caller written from the protocol alone: one REQUEST, one answer. First: python raw_backend.py"""

import json
import sys

import zmq

endpoint, words = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("tcp://127.0.0.1:5700", ["quiet"])

with zmq.Context.instance().socket(zmq.DEALER) as socket:
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    options = {"service": "upper", "id": "1", "timeout": 5}
    socket.send_multipart([b"SCALE0/1", b"REQUEST", json.dumps(options).encode(), json.dumps(words).encode()])
    if not socket.poll(6_000):
        sys.exit(f"no broker answers at {endpoint}")
    _protocol, command, said, *bodies = socket.recv_multipart()
    if command == b"REPLY":
        print(json.loads(bodies[0]))
    else:
        sys.exit(f"{command.decode()} {said.decode()}")
