"""A broker's relations with other brokers: peers, replication, failover and forwarding."""
