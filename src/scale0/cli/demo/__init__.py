"""`scale0 demo`, `chaos` and `up`: networks on this machine."""
