"""The commands that pages and helps show: finding them, and checking them against the command line and the Makefile.

Every line of a block that begins with `scale0` or `make` is checked, whether the page is typed or not. Everything below
`Examples:` in a help is an example; a line that ends with a backslash continues in the next.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from scale0.cli.main import cli
from tests.docs import pages
from tests.docs.blocks import REPOSITORY, Block

_PROMPT: Final = re.compile(r"^\s*(?:\$ )?(?:ExecStart=)?(?:sudo )?(?:[A-Z0-9_]+=\S* )*(?=(?:scale0|make)\b)")
_INLINE: Final = re.compile(r"`((?:scale0|make) [^`\n]+)`")
_ENDS: Final = re.compile(r"\s(?:\||>>?|2>|<|&&?|;)(?=\s|$|&)")
MENTIONED: Final = "VALUE"
"""What an option at the end of a command in the text is given, if it takes something."""
_WORDS_ONLY: Final = frozenset({"text", "json", "python", "lua", "javascript", "js", "sql", "xml"})


_TITLE: Final = re.compile(r"(?:Examples?|Start here):$")
_EXPLANATION: Final = re.compile(r"\s{2,}\S.*$")


def walk(command: click.Command = cli, path: str = "scale0") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, the root first, a group before its commands."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, f"{path} {name}")


def in_block(block: Block) -> Iterator[tuple[int, str]]:
    """The commands of a block, with the number of their line; one that goes on after a backslash is put together."""
    if block.language in _WORDS_ONLY or block.directives.file:
        return
    lines = iter(enumerate(block.lines, start=block.line))
    for number, line in lines:
        found = _PROMPT.match(line)
        if not found:
            continue
        command = line[found.end() :]
        while command.endswith("\\"):
            command = command[:-1] + next(lines)[1].strip()
        # `scale0: no broker answers` is what it prints.
        if re.match(r"(?:scale0|make) ", command) and not _is_printed(block, line):
            yield number, command


def _is_printed(block: Block, line: str) -> bool:
    """In a transcript, only what follows a prompt was typed."""
    return any(each.startswith("$ ") for each in block.lines) and not line.startswith("$ ")


def in_prose(text: str) -> Iterator[str]:
    """Commands in backticks; an option that ends one stands there for its value, too."""
    for one in _INLINE.findall(pages.prose(text)):
        yield f"{one} {MENTIONED}" if re.search(r" --[a-z-]+$", one) else one


def to_type(text: str, names: set[str]) -> Iterator[str]:
    """Commands of ours in backticks, each once; one that is no more than a name is mentioned, and not typed."""
    found = (one for one in _INLINE.findall(pages.prose(text)) if one.startswith("scale0 "))
    yield from dict.fromkeys(one for one in found if one not in names)


def complaint(command: str, root: click.Group, targets: Sequence[str]) -> str | None:
    """What is wrong with a command, or None."""
    plain = _ENDS.split(f"{command} ")[0].split("  ")[0]  # what stands in a column beside it explains it
    try:
        words = shlex.split(plain, comments=True)
    except ValueError as error:
        return str(error)
    words = [word.replace("…", "x") for word in words if not re.fullmatch(r"…|[\[{].*", word)]
    if words[-1] == MENTIONED and _wrong(root, click.Context(root, info_name="scale0"), words[1:]) is not None:
        words.pop()  # an option without a value
    if words[0] == "make":
        named = [word for word in words[1:] if "=" not in word]
        unknown = [word for word in named if word not in targets]
        return f"make knows no {unknown}" if unknown else None
    return _wrong(root, click.Context(root, info_name="scale0"), words[1:])


def _wrong(command: click.Command, context: click.Context, words: list[str]) -> str | None:
    """Walk down the groups; the last command must know every option, and every choice that is made."""
    try:
        given, left, _ = command.make_parser(context).parse_args(args=list(words))
    except click.UsageError as error:
        return error.format_message()
    if wrong := _wrong_choice(command, given):
        return wrong
    if not isinstance(command, click.Group):
        return f"{command.name} takes no {left}" if left and not _ignores(command) else None
    if not left or not re.fullmatch(r"[a-z][a-z0-9-]*", left[0]):
        return None  # the group itself, or a word that stands for several commands
    inner = command.get_command(context, left[0])
    if inner is None:
        return f"{command.name} has no command {left[0]}"
    return _wrong(inner, click.Context(inner, info_name=left[0], parent=context), left[1:])


def _ignores(command: click.Command) -> bool:
    return bool(command.context_settings.get("allow_extra_args"))


def _wrong_choice(command: click.Command, given: dict[str, Any]) -> str | None:
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if not isinstance(parameter.type, click.Choice) or not isinstance(value, str) or not value.islower():
            continue
        if value not in parameter.type.choices:
            return f"{command.name}: {parameter.name} is none of {', '.join(map(str, parameter.type.choices))}: {value}"
    return None


def examples(text: str) -> Iterator[str]:
    """The examples of a help; what stands in a column beside one explains it."""
    title: int | None = None
    begun = ""
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if _TITLE.match(line.strip()):
            title = depth
        elif title is None or not line.strip() or depth <= title:
            title = None
        elif line.endswith("\\"):
            begun += line.strip().removesuffix("\\")
        else:
            yield begun + _EXPLANATION.sub("", line.strip())
            begun = ""


HELPS: Final = {path: inspect.cleandoc(command.help or "") for path, command in walk()}
TEXT_PAGES: Final = ("docs/troubleshooting.md", "docs/parity.md")
"""Pages whose commands stand in the text."""
LINES: Final = {path: list(examples(text)) for path, text in HELPS.items()} | {
    page: list(to_type((REPOSITORY / page).read_text(encoding="utf-8"), set(HELPS))) for page in TEXT_PAGES
}
"""Everything that is typed for DOCS-4, by the command whose help it is, or the page."""
