"""All that is typed for DOCS-4: the examples of every help, and the commands in the text of pages that are not typed.

Lives here: which they are today. Never here: how they are found (`examples`), or what they need (`help_tables`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scale0.cli.main import cli
from tests.docs.examples import examples, helps, in_text

REPOSITORY: Final = Path(__file__).resolve().parents[2]
HELPS: Final = dict(helps(cli))
PAGES: Final = ("docs/troubleshooting.md", "docs/parity.md")
LINES: Final = {path: list(examples(text)) for path, text in HELPS.items()} | {
    page: list(in_text((REPOSITORY / page).read_text(encoding="utf-8"), set(HELPS))) for page in PAGES
}
"""By the command whose help it is, or the page."""
