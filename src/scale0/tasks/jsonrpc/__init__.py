"""JSON-RPC 2.0 for tasks: messages, arguments and methods."""
