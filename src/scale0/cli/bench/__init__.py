"""`scale0 bench`."""
