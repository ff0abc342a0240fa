"""Every block of README and docs with a command in it is typed, or says why it is not.

Promise: DOCS-2
"""

from __future__ import annotations

from typing import Final

from tests.docs import blocks, commands
from tests.docs.blocks import Block, Page

GENERATED_OR_HISTORY: Final = ("docs/reference/", "docs/decisions/")
CANNOT_BE_TYPED: Final = [
    ("README.md", "make demo"),
    ("docs/console.md", "$ cd console && npm ci && npm run build"),
    ("docs/deploy.md", "$ make wheel"),
    (
        "docs/deploy.md",
        "$ cp deploy/systemd/scale0.sysusers.conf /usr/lib/sysusers.d/scale0.conf && systemd-sysusers",
    ),
    ("docs/howto/spark-on-yarn-and-kubernetes.md", "$ scale0 pipeline run --master spark://10.0.0.1:7077"),
    ("docs/howto/spark-on-yarn-and-kubernetes.md", "$ scale0 pipeline run --master yarn"),
    ("docs/howto/spark-on-yarn-and-kubernetes.md", "$ scale0 pipeline run --master k8s://https://10.0.0.1:6443"),
    ("docs/monitoring.md", "$ scale0 checks"),
    ("docs/operations.md", "$ scripts/bare-root /var/tmp/bare --java --try"),
    ("docs/performance.md", "$ make bench"),
    ("docs/running-the-pipeline.md", "$ scale0 pipeline run --master spark://10.0.0.1:7077"),
    ("docs/tutorial.md", "$ make setup"),
    ("docs/tutorial.md", "$ scale0 pipeline run --data-dir var/desk"),
]
"""All of them, by page and first line; each has its reason on the page."""


def pages() -> dict[str, Page]:
    return {name: page for name, page in blocks.read_pages().items() if not name.startswith(GENERATED_OR_HISTORY)}


def commanding(page: Page) -> list[Block]:
    """The blocks that somebody would type."""
    return [one for one in page.blocks if one.is_transcript or (any(commands.in_block(one)) and not is_unit(one))]


def is_unit(block: Block) -> bool:
    """A part of a unit of systemd: it has a command, and nobody types it."""
    return block.lines[0].startswith("[")


def is_typed(page: Page, block: Block) -> bool:
    return bool(page.hosts) and block.is_transcript and not block.is_left_out


def first_line(block: Block) -> str:
    """Without a comment, and without what a long one has more."""
    return block.lines[0].partition("  #")[0].partition(" --warehouse")[0].rstrip()


def untyped(page: Page) -> list[Block]:
    return [one for one in commanding(page) if not is_typed(page, one)]


def test_a_block_with_a_command_is_typed_or_says_why_not():
    silent = [
        f"{name}:{block.line}: {first_line(block)}"
        for name, page in pages().items()
        for block in untyped(page)
        if not block.directives.reason
    ]
    assert silent == []


def test_what_cannot_be_typed_is_counted():
    found = [(name, first_line(block)) for name, page in pages().items() for block in untyped(page)]
    assert found == CANNOT_BE_TYPED


def test_an_untyped_block_is_seen():
    page = blocks.read_page(
        "<!-- run: this page -->\n\n    $ scale0 up\n\na\n\n    scale0 status\n\nb\n\n<!-- run: only parsed -->\n\n"
        "    $ scale0 checks\n\nc\n\n<!-- run: file a.sh -->\n\n    $ no command\n\nd\n\n    {}\n"
    )
    assert [first_line(one) for one in untyped(page)] == ["scale0 status", "$ scale0 checks"]
    assert len(commanding(page)) == 3
