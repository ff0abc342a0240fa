"""The reference knows everything that there is: commands, options, codes, limits, events, counters, words to type."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

import scale0
from scale0.broker.admin.access import RANKS
from scale0.history.events.columns import COLUMNS
from scale0.history.events.kinds import KINDS
from scale0.kernel import codes
from scale0.kernel.limits import Limits
from scale0.testing import StubNetwork
from scale0.transport.core.command_table import RULES, TO_CLIENTS
from tests.docs import pages
from tests.docs.blocks import REPOSITORY
from tests.docs.reference import pages_of_reference
from tests.fakes.broker import FakeBroker
from tests.unit.events.samples import SAMPLES


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


PROTOCOL = read("docs/protocol.md")
PIPELINE = read("docs/pipeline.md")
SCHEMAS: dict[str, Any] = {**TO_CLIENTS, **{rule.command: rule.schema for rule in RULES}}


def rows(text: str, columns: int) -> dict[str, list[str]]:
    """The rows of tables of so many columns, by the first word in backticks; the first of each counts."""
    out: dict[str, list[str]] = {}
    for cells in pages.table_rows(text):
        if len(cells) == columns and pages.words(cells[0]):
            out.setdefault(pages.words(cells[0])[0], cells)
    return out


# Promise: HOUSE-4
@pytest.mark.parametrize("command", [*SCHEMAS, "BATCH"])
def test_every_command_is_in_the_table_of_commands(command):
    assert command in rows(PROTOCOL, 4)


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_option_is_documented(command):
    documented = set(pages.words(pages.prose(PROTOCOL)))
    assert [name for name in SCHEMAS[command].__struct_fields__ if name not in documented] == []


# Promise: HOUSE-4
def test_every_management_command_is_documented_with_its_role():
    table = FakeBroker().machine.management.table
    documented = {name: cells[1] for name, cells in rows(PROTOCOL, 4).items() if cells[1] in RANKS}
    assert documented == {name: role for name, (role, _) in table.items()}


# Promise: HOUSE-4
def test_every_limit_is_documented_with_its_default():
    documented = {}
    for name, cells in rows(PROTOCOL, 3).items():
        if name in Limits.__struct_fields__:
            documented[name] = float(cells[1].removesuffix(" s").replace(",", ""))
    assert documented == {name: float(value) for name, value in msgspec.structs.asdict(Limits()).items()}


# Promise: HOUSE-4
def test_every_code_is_documented_with_its_meaning():
    found = [cells for cells in pages.table_rows(PROTOCOL) if re.fullmatch(r"[1-5][0-9][0-9]", cells[0])]
    documented = {int(cells[0]): cells[1] for cells in found if len(cells) == 3}
    assert documented == codes.MEANINGS


@pytest.mark.parametrize("code", [code for code in codes.MEANINGS if code != codes.OK])
def test_every_code_has_something_to_do_about_it(code):
    assert str(code) in read("docs/troubleshooting.md")


# Promise: HOUSE-4
def test_every_kind_of_event_is_documented_with_its_columns():
    filled = {event.kind: set(columns) for event, columns in SAMPLES}
    documented = {name: set(pages.words(cells[2])) for name, cells in rows(PIPELINE, 4).items() if name in KINDS}
    assert documented == filled
    assert documented.keys() == KINDS.keys()


def test_the_keys_of_data_are_documented():
    table = rows(PIPELINE, 4)
    for event, columns in SAMPLES:
        if "data" in columns and event.kind != "client.refused":  # its data is the reason, in plain values
            assert set(json.loads(str(columns["data"]))) == set(pages.words(table[event.kind][3]))


def test_every_column_is_documented_in_order():
    documented = [cells for cells in pages.table_rows(PIPELINE) if len(cells) == 4 and cells[2] in ("yes", "no")]
    wanted = [[f"`{c.name}`", c.type, "yes" if c.nullable else "no", c.meaning] for c in COLUMNS]
    assert documented == wanted


COUNTED = re.compile(r'\.count\("(\w+)"|_counts\["(\w+)"\]')


@pytest.mark.parametrize(("number", "is_of_helen"), [(1, False), (2, True)], ids=["broker", "helen"])
def test_every_counter_is_documented(number, is_of_helen):
    package = REPOSITORY / "src" / "scale0"
    sources = (
        file
        for file in package.rglob("*.py")
        if file.is_relative_to(package / "monitoring" / "helen" / "core") == is_of_helen
    )
    counted = {a or b for file in sources for a, b in COUNTED.findall(file.read_text(encoding="utf-8"))}
    table = read("docs/operations.md").split("| counter |")[number].split("\n\n", 1)[0]
    assert counted == set(rows(table, 2))


# Promise: DOCS-3
@pytest.mark.parametrize("name", ["commands.md", "python.md"])
def test_a_generated_page_is_what_the_code_says(name):
    """If not: scripts/reference."""
    assert read(f"docs/reference/{name}") == pages_of_reference()[name]


def test_the_service_of_the_readme_works_as_it_stands_there():
    (service,) = re.findall(r"^```python\n(.*?)^```", read("README.md"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "hello"}
    exec(compile(service, "README.md", "exec"), names)
    with StubNetwork(names["worker"]) as net:
        assert net.call("hello", "Ada").startswith("Hello, Ada! (from process ")


@pytest.mark.parametrize("public", ["Client", "AsyncClient", "Worker"])
def test_the_methods_that_the_page_for_programs_names_are_there(public):
    methods = [word for word in pages.words(rows(read("docs/from-python.md"), 2)[public][1]) if word.isidentifier()]
    assert methods
    assert [name for name in methods if not hasattr(getattr(scale0, public), name)] == []


def test_every_decision_is_in_the_list_of_decisions():
    folder = REPOSITORY / "docs" / "decisions"
    listed = set(pages.links((folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {file.name for file in folder.glob("[0-9]*.md")}


def test_the_errors_that_troubleshooting_is_ordered_by_are_in_the_words_of_the_code():
    """So that a search for what stands on the screen finds its section."""
    sources = (file.read_text(encoding="utf-8") for file in sorted((REPOSITORY / "src" / "scale0").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    headings = re.findall(r"^## (.+)$", read("docs/troubleshooting.md"), re.MULTILINE)
    words = [part.strip() for line in headings for text in re.findall(r'"([^"]+)"', line) for part in text.split("…")]
    assert [part for part in words if part not in source] == []
