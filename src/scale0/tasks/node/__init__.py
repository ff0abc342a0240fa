"""The worker side of tasks: run them, and report results."""
