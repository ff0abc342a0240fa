"""A simulated network of brokers, clients and workers."""
