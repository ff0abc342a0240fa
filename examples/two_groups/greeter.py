"""The service: it returns where it runs. Each group has a worker of its own."""

import os

import scale0

worker = scale0.Worker()


@worker.service("hello")
def hello(name: str) -> str:
    """A greeting, and from where."""
    return f"Hello, {name}, from the {os.environ['GROUP']}!"
