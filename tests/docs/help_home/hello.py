"""What the examples of the command line's help call: a file as a user may have it."""

from __future__ import annotations

import os

import scale0

worker = scale0.Worker(identity=os.environ.get("NODE"))


@worker.service("hello")
def hello(name: str = "world") -> str:
    return f"Hello, {name}!"


@worker.service("math.add")
def add(a: int, b: int) -> int:
    return a + b


@worker.service("math.negate")
def negate(a: int) -> int:
    return -a


@worker.service("thumbs.make")
def make_thumb(name: str, width: int = 200) -> dict[str, object]:
    return {"name": name, "width": width}


@worker.service("image.rotate", raw=True)
def rotate(image: bytes) -> bytes:
    return image[::-1]


@worker.service("report.send")
def send_report() -> str:
    return "sent"


@worker.service("service.restart")
def restart(name: str) -> str:
    return f"{name} runs again"
