"""What `scripts/bare-root --try` types is what README says, in order; here without typing it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def script() -> Any:
    """The script as a module; it lies in no package."""
    spec = importlib.util.spec_from_file_location("readme_commands", REPOSITORY / "scripts" / "readme_commands.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["readme_commands"] = made
    spec.loader.exec_module(made)
    return made


readme = script()

PAGE = """# A page

## Before

    $ scale0 never

## Five minutes

Start a network:

    $ scale0 up
    ready: broker vm

        scale0 call     # indented deeper: no command

A service, in `hello.py`:

```python
worker = 1

    $ not a command
```

Start two of it:

    $ scale0 worker hello.py:worker
    ready backend-9 hello

```console
$ scale0 call hello \\
>     Ada
Hello, Ada! (from process 14711)
$ kill -9 14711
$ python3 -m http.server 8080 &
```

    $ scale0 call hello 42
    scale0: hello cannot take that
      next: …

## After

    $ scale0 never
"""


def test_commands_and_files_come_in_order():
    found = list(readme.steps(readme.section_of(PAGE, "Five minutes")))
    assert found == [
        readme.Command("scale0 up", ("ready: broker vm", "    scale0 call     # indented deeper: no command")),
        readme.File("hello.py", "worker = 1\n\n    $ not a command\n"),
        readme.Command("scale0 worker hello.py:worker", ("ready backend-9 hello",), 2),
        readme.Command("scale0 call hello \\\n    Ada", ("Hello, Ada! (from process 14711)",)),
        readme.Command("kill -9 14711", ()),
        readme.Command("python3 -m http.server 8080 &", ()),
        readme.Command("scale0 call hello 42", ("scale0: hello cannot take that", "  next: …")),
    ]
    assert [readme.stays(step.line) for step in found if isinstance(step, readme.Command)] == [
        *(True, True, False, False, True, False),
    ]
    last = found[-1]
    assert [readme.may_end(last, status) for status in (0, 1)] == [False, True]


def test_a_command_ends_as_the_page_shows():
    plain, unwell = (
        readme.Command("scale0 services", ("hello 1",)),
        readme.Command("scale0 incidents", ("vm web critical",)),
    )
    assert [readme.may_end(plain, status) for status in (0, 1)] == [True, False]
    assert [readme.may_end(unwell, status) for status in (0, 1, 3)] == [True, True, False]


def test_numbers_of_the_page_stand_for_those_that_were_printed():
    meanings: dict[str, str] = {}
    readme.learn(
        ("Hello, Ada! (from process 14711)", "other 5 words"), "noise\nHello, Ada! (from process 77)\n", meanings
    )
    assert readme.meant("kill -9 14711", meanings) == "kill -9 77"
    readme.learn(("28f9.000000000001",), "nobody yet\nab12.000000000001\n", meanings)
    assert readme.meant("scale0 task result 28f9.000000000001", meanings) == "scale0 task result ab12.000000000001"


def test_the_readme_has_commands_to_try():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    typed = [
        step.line for step in readme.steps(readme.section_of(text, "Five minutes")) if isinstance(step, readme.Command)
    ]
    assert any(line.startswith("scale0 up") for line in typed)
    assert any(line.startswith("scale0 call") for line in typed)
