"""The console's source: its table of actions, what its page may hold, and what its packages may say."""

from __future__ import annotations

import json
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
CONSOLE = REPOSITORY / "console"
DOCUMENT = (REPOSITORY / "docs" / "console.md").read_text(encoding="utf-8")
ACTION = re.compile(
    r'\{ id: "([^"]+)", label: "([^"]+)", method: "([A-Z]+)", path: "([^"]+)", role: "([a-z]+)", command: "([^"]+)",'
)
PAGE = re.compile(r'\{ page: "([^"]+)", title: "([^"]+)", key: "([a-z])", command: "([^"]+)"')
MAX_LINES = 400
SOURCES = sorted([*(CONSOLE / "src").rglob("*.ts*"), *(CONSOLE / "src").rglob("*.css")])


def section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def actions() -> list[tuple[str, ...]]:
    return [found.groups() for found in ACTION.finditer((CONSOLE / "src" / "actions.ts").read_text(encoding="utf-8"))]


# Promise: CON-1
def test_every_action_is_documented_with_its_route_role_and_command():
    rows = {
        f"| {id_} | {label} | `{method} {path}` | {role} | `{command}` |"
        for id_, label, method, path, role, command in actions()
    }
    documented = {line for line in section("Actions").splitlines() if line.startswith("| ") and "`" in line}
    assert documented == rows


# Promise: CON-1
def test_no_row_of_the_table_is_written_in_another_way():
    text = (CONSOLE / "src" / "actions.ts").read_text(encoding="utf-8")
    assert len(actions()) == text.count("asks: true") + text.count("asks: false") > 15
    assert len({row[0] for row in actions()}) == len(actions())


# Promise: CON-1
def test_nothing_is_sent_that_is_no_action():
    """Pages change things by `act`, which looks into the table; the session and a draft's check stand by themselves."""
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        sent = re.findall(r'call(?:<[^(]*>)?\("(POST|PUT|PATCH|DELETE)", "([^"]+)"', text)
        assert set(sent) <= {("POST", "/session"), ("DELETE", "/session"), ("POST", "/config/check")}, file.name
        assert file.name == "api.ts" or "fetch(" not in text, file.name


# Promise: CON-1
def test_every_page_is_documented_with_its_key_and_command():
    text = (CONSOLE / "src" / "pages.ts").read_text(encoding="utf-8")
    found = [row.groups() for row in PAGE.finditer(text)]
    documented = section("Pages")
    assert found
    assert len({key for _, _, key, _ in found}) == len(found)
    for page, title, key, command in found:
        row = rf"^\| {title} `#/{page}` \| `g {key}` \|.*\| `{re.escape(command)}`"
        assert re.search(row, documented, re.MULTILINE), page


# Promise: CON-2
def test_the_page_holds_no_script_or_style_of_its_own():
    text = (CONSOLE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?:", text)


# Promise: CON-2
def test_no_source_reaches_elsewhere_or_is_too_long():
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!127\.0\.0\.1)", text), file.name
        assert "dangerouslySetInnerHTML" not in text, file.name
        assert "eval(" not in text, file.name
        assert len(text.splitlines()) <= MAX_LINES, file.name
        assert text.lstrip().startswith(("//", "/*")), f"{file.name}: a file opens with what lives in it"


# Promise: CON-2
def test_the_lock_names_no_registry():
    lock = json.loads((CONSOLE / "package-lock.json").read_text(encoding="utf-8"))
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)
