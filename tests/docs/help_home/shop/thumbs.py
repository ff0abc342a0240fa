"""A worker in a module of a package."""

from __future__ import annotations

import scale0

worker = scale0.Worker()


@worker.service("thumbs.make")
def make_thumb(name: str, width: int = 200) -> dict[str, object]:
    return {"name": name, "width": width}
