"""An agent without I/O: its session and its check schedule."""
