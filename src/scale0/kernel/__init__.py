"""Types and constants that every package uses: time, identities, effects, error codes, limits, timers. Nothing outside
`edge` does I/O, and nothing here imports another package."""
