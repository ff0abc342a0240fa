"""Say nonsense to the broker here until it ignores us."""

import zmq
import zmq.auth

bad = zmq.Context().socket(zmq.DEALER)
bad.linger = 0
bad.curve_publickey, bad.curve_secretkey = zmq.auth.load_certificate(".scale0/keys/local/frontend.key_secret")
bad.curve_serverkey = zmq.auth.load_certificate(".scale0/keys/server/server.key")[0]
bad.connect("tcp://127.0.0.1:5700")
for _ in range(20):
    bad.send_multipart([b"SCALE0", b"NONSENSE", b"{}"])
    bad.poll(20)
