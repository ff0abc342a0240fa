"""The broker.

`core` decides about clients, requests and queues; `admin` has the management commands; `cluster` has everything between
brokers; `edge` has the sockets and key files; `main` puts them together and runs the process.
"""
