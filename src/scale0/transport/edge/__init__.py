"""ZeroMQ sockets, CURVE, key files and joining."""
