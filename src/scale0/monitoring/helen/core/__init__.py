"""Helen without I/O: agents, check states, incidents, notifications."""
