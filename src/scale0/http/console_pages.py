"""The console's built pages, read into memory once.

A request selects one of these files by its exact name: no path of a request is ever joined to a path of the file
system.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parent / "pages"
INDEX: Final = "index.html"
MAX_FILES: Final = 500
MAX_TOTAL_BYTES: Final = 32 * 1024 * 1024
MIN_GZIP_BYTES: Final = 1_024
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
PACKED: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".webmanifest", ".txt", ".map"})
"""Suffixes of files that are worth compressing."""
ABSENT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Scale0</title></head>
<body><h1>Scale0</h1>
<p>The management server is running, but the console is not built.</p>
<p>In a checkout, run <code>make setup</code> to build it; a wheel contains it.</p>
<p>The API is described at <a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
</body></html>
"""


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    packed: bytes | None
    media_type: str
    etag: str
    is_final: bool
    """Its name contains a hash of its content, so it never changes."""


def read_pages(folder: Path = FOLDER) -> dict[str, Asset]:
    """Every file below `folder` by its path; if nothing is built, one page that says so."""
    found: dict[str, Asset] = {}
    total = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if not path.is_file() or path.is_symlink() or path.name.startswith("."):
            continue
        total += path.stat().st_size
        if len(found) >= MAX_FILES or total > MAX_TOTAL_BYTES:
            raise ValueError(f"{folder} has more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
        name = path.relative_to(folder).as_posix()
        found[name] = asset(name, path.read_bytes())
    found.setdefault(INDEX, asset(INDEX, ABSENT.encode()))
    return found


def asset(name: str, body: bytes) -> Asset:
    ending = Path(name).suffix.lower()
    packed = gzip.compress(body, 9, mtime=0) if ending in PACKED and len(body) >= MIN_GZIP_BYTES else None
    return Asset(
        body=body,
        packed=packed,
        media_type=TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream",
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        is_final=name.startswith("assets/"),
    )
