"""The broker's end of tasks: queue, leases, delayed tasks, dependencies."""
