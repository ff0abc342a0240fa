"""Evidence: faults and attacks against real processes, from outside the package, and bugs that they must find."""
