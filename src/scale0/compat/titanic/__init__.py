"""RFC 9, Titanic: stored requests as tasks."""
