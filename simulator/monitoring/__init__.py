"""A simulated network of Helens and agents."""
