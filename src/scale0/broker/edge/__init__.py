"""A broker's sockets, CURVE and key files."""
