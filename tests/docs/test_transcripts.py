"""Pages are typed: what README, the tutorial and the how-tos show is what a shell prints, on machines of their own.

Promise: DOCS-1
"""

from __future__ import annotations

import pytest

from tests.docs import blocks, typing_pages
from tests.docs.machines import machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.extended]

PAGES = blocks.read_pages()
TYPED = [name for name, page in PAGES.items() if page.hosts]


@pytest.mark.parametrize("name", TYPED)
def test_a_page_shows_what_a_shell_prints(name, tmp_path):
    with machines(PAGES[name], tmp_path) as at:
        typing_pages.check(PAGES[name], at)
