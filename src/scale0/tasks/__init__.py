"""Durable tasks: JSON-RPC methods, the queue, leases, and the node that runs them.

Invariant: an acknowledged task is run to an end, whichever process dies.
"""
