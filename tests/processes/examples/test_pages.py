"""Every example prints what its README shows, on a machine of its own, in a copy of its folder."""

# Promise: CLI-3
# Promise: DOCS-1
from __future__ import annotations

import pytest

from tests.docs.blocks import read_page
from tests.docs.machines import machines
from tests.docs.typing_pages import check
from tests.fakes.shell import EXAMPLES

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

PAGES = {page.parent.name: page.read_text(encoding="utf-8") for page in sorted(EXAMPLES.glob("*/README.md"))}
LEFT_OUT = 2
"""Blocks that are not typed: the warehouse wants Spark. Each says why."""
MORE = {
    "node_js": """
Of its work when the broker is killed: the id that a node brings is the one that its leases are known by.

    $ scale0 task status d146e33ce3d9178681fe.000000000001 --json --join 127.0.0.1:5700
    {…"attempt": 2, …"node_id": "node-js-9142f3d5"…}
    $ node node.js --backend tcp://127.0.0.1:5701 --task-pub tcp://127.0.0.1:5704 > node.log &
    $ cat node.log
    ready node-js-1a2b3c4d words.count words.read
    $ scale0 task submit words.read 'a b' seconds=1.5 --join 127.0.0.1:5700
    1111aaaa1111aaaa1111.000000000001
    $ scale0 task submit words.count '' --join 127.0.0.1:5700
    2222aaaa2222aaaa2222.000000000002
    $ kill -9 %1
    $ scale0 up --bare --insecure --port 5700 &
    ready: broker …
    $ scale0 task wait 1111aaaa1111aaaa1111.000000000001 2222aaaa2222aaaa2222.000000000002 --join 127.0.0.1:5700
    …
    $ scale0 task result 1111aaaa1111aaaa1111.000000000001 --join 127.0.0.1:5700
    2
    $ scale0 task status 1111aaaa1111aaaa1111.000000000001 --json --join 127.0.0.1:5700
    {…"attempt": 1, …}
    $ scale0 task status 2222aaaa2222aaaa2222.000000000002 --json --join 127.0.0.1:5700
    {…"message": "there is nothing to count"…}

Cancelled: a node is not told, but its next word about the task is refused.

    $ scale0 task submit words.read 'a b c d e f g h i' --join 127.0.0.1:5700
    3333aaaa3333aaaa3333.000000000003
    $ scale0 task cancel 3333aaaa3333aaaa3333.000000000003 --join 127.0.0.1:5700
    $ cat node.log
    …
    gave up 3333aaaa3333aaaa3333.000000000003
    $ kill %node; wait %node
    $ cat node.log
    …
    left
""",
}
"""What is typed after a README's own: promises that a reader need not see kept."""


@pytest.mark.parametrize("name", PAGES)
def test_an_example_prints_what_its_readme_shows(name, tmp_path):
    page = read_page(PAGES[name] + MORE.get(name, ""))
    with machines(page, tmp_path) as at:
        check(page, at)


def test_every_folder_is_typed_and_little_is_left_out():
    assert set(PAGES) == {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0].isalpha()}
    pages = [read_page(text) for text in PAGES.values()]
    assert all(page.hosts for page in pages)
    assert len([block for page in pages for block in page.blocks if block.is_left_out]) <= LEFT_OUT
