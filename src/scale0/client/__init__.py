"""Clients and workers: `Client`, `AsyncClient`, `Worker`. Internal: the public names are those of `scale0`."""
