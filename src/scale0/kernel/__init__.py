"""Words that every room shares: time, identities, steps, error codes, limits, deadlines.

Nothing here does I/O, and nothing here imports another room.
"""
