"""The console's built pages, read once.

Lives here: files into memory, each with what a browser must be told of it. Never here: a path from a request joined to
one of ours: what is served is what was found at the start, by its exact name.
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
"""Endings of what gets smaller."""
ABSENT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Scale0</title></head>
<body><h1>Scale0</h1>
<p>The management server runs, but the console's pages are not built here.</p>
<p>In a checkout, <code>make setup</code> builds them; a wheel has them.</p>
<p>The API is at <a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
</body></html>
"""


class Asset(msgspec.Struct, frozen=True):
    """One file, as it is sent."""

    body: bytes
    packed: bytes | None
    kind: str
    etag: str
    is_final: bool
    """Its name has a hash of what is in it: it never changes."""


def read_pages(folder: Path = FOLDER) -> dict[str, Asset]:
    """Every file below `folder` by its path; where nothing is built, one page that says so."""
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
    """A file with its headers."""
    ending = Path(name).suffix.lower()
    packed = gzip.compress(body, 9, mtime=0) if ending in PACKED and len(body) >= MIN_GZIP_BYTES else None
    return Asset(
        body=body,
        packed=packed,
        kind=TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream",
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        is_final=name.startswith("assets/"),
    )
