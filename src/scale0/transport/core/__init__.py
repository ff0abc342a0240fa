"""SCALE0/1 without I/O: messages, codec, client sessions."""
