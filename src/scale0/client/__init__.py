"""What users import: Client, AsyncClient, Worker, Task.

Lives here: calls that read like Python. Never here: protocol decisions; those are the machines'.
Invariant: heartbeats never wait for a user's function.
"""
