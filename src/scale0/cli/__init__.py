"""The `scale0` command line. Exit codes are 0 yes, 1 no or unhealthy, 2 wrong usage, 3 not reachable."""
