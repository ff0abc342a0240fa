"""The client side of tasks: submit them, and wait for results."""
