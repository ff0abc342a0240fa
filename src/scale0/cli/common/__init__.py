"""Shared by several commands: connections, options, output, errors, child processes."""
