"""Very large simulated networks."""
