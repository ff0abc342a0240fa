"""SCALE0/1, both ends: messages, codec and sessions (`core`); sockets, CURVE and keys (`edge`)."""
