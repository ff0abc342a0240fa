"""The invariants of every simulated network."""
