"""Brokers among each other: peers, replication, failover and forwarding."""
