"""The HTTP server: the API, the event stream, the metrics and exports, and the console's built pages.

The server has no state of its own: it reads from a broker, and every change is a command to that broker.
"""
