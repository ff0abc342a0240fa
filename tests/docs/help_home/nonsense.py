"""Say nonsense to the broker here until it ignores us."""

import zmq

bad = zmq.Context().socket(zmq.DEALER)
bad.linger = 0
bad.connect("tcp://127.0.0.1:5700")
for _ in range(20):
    bad.send_multipart([b"SCALE0", b"NONSENSE", b"{}"])
    bad.poll(20)
