"""The worker: work that takes too long for a web request. Start any number of them, on any number of hosts.

scale0 worker thumbnails.py
"""

import hashlib
import time

import scale0

worker = scale0.Worker()


@worker.service("thumbs.make", slots=2)
def make(url: str, width: int) -> dict[str, str | int]:
    """A thumbnail of a picture (simulated)."""
    if not url.startswith(("http://", "https://")):
        raise scale0.GiveUp(f"{url} is no picture's address")  # tried again, it would be no better
    for step, note in enumerate(("fetching", "scaling", "storing")):
        if scale0.cancelled():
            raise scale0.GiveUp("nobody wants it any more")
        scale0.progress(step / 3, note)
        time.sleep(1)
    name = hashlib.sha256(f"{url} {width}".encode()).hexdigest()[:12]
    return {"thumbnail": f"/thumbnails/{name}.png", "width": width}
