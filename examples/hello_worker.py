"""A worker in five lines. Run it with: scale0 worker hello_worker.py:worker"""

import scale0

worker = scale0.Worker()


@worker.service("hello")
def hello(name: str = "world") -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    worker.run()
