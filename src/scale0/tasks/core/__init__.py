"""The broker's side of tasks: queue, leases, delayed tasks, dependencies."""
