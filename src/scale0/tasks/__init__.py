"""Durable tasks: JSON-RPC methods, the queue, leases, and the node that runs them.

Lives here: pure machines that are told the time. Never here: a socket, a clock, or the store itself.
Invariant: an acknowledged task is run to an end, whoever dies.
"""
