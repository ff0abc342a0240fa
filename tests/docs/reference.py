"""The generated pages of the reference: commands from click, Python names from signatures and docstrings.

The pages depend on the code alone, and not on the machine: the same code makes the same text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import click

import scale0
from scale0 import errors
from scale0.client.task_options import TaskOptions
from scale0.testing import StubNetwork
from tests.docs.commands import walk


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and thing.__module__ == errors.__name__ and not hasattr(scale0, thing.__name__)


MADE: Final = "<!-- Made by scripts/reference: change the code, not this page. -->"


BESIDE: Final = {
    "scale0.client.task_options.TaskOptions": TaskOptions,
    **{f"{errors.__name__}.{name}": thing for name, thing in sorted(vars(errors).items()) if _is_error(thing)},
    "scale0.testing.StubNetwork": StubNetwork,
}
"""What users meet and do not import from `scale0` itself: options of `task(…)`, errors, and a double for tests."""


def pages_of_reference() -> dict[str, str]:
    return {"commands.md": commands_page(), "python.md": python_page()}


def commands_page() -> str:
    """Every command with its arguments, options, and what its help says."""
    out = [
        MADE,
        "",
        "# Commands",
        "",
        "What `scale0 COMMAND --help` says, on one page.",
        "",
    ]
    found = [(words, command) for words, command in sorted(walk()) if words != "scale0" and not command.hidden]
    out += ["| command | what it does |", "| --- | --- |"]
    for words, command in found:
        out.append(f"| [`{words}`](#{_anchor(words)}) | {_cell(command.get_short_help_str(200))} |")
    for words, command in found:
        out += ["", f"## {words}", "", *_command(words, command)]
    return "\n".join(out) + "\n"


def _command(words: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=words)
    # click's own pieces: the column of the terminal that made them does not matter
    yield f"    {words} {' '.join(command.collect_usage_pieces(context))}"
    yield ""
    yield from _help(command.help or "")
    rows = [row for each in command.params if (row := each.get_help_record(context)) and each.name != "help"]
    if rows:
        yield ""
        yield "| option | |"
        yield "| --- | --- |"
        for option, text in rows:
            yield f"| `{_cell(option)}` | {_cell(text)} |"


def _help(text: str) -> Iterator[str]:
    """Paragraphs as they are; what stands after a backspace is kept line by line."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":
            yield from (f"    {line}".rstrip() for line in lines[1:])
        else:
            yield re.sub(r"([<>*])", r"\\\1", " ".join(line.strip() for line in lines))
        yield ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _anchor(words: str) -> str:
    return words.lower().replace(" ", "-")


def python_page() -> str:
    """Every name that `import scale0` offers, with its signature and its docstring."""
    out = [
        MADE,
        "",
        "# Python",
        "",
        "Every name that `import scale0` offers, the options of tasks, the errors, and the double for your own tests.",
        "How they are used together is in [from-python.md](../from-python.md).",
    ]
    found = {f"scale0.{name}": getattr(scale0, name) for name in scale0.__all__ if name != "__version__"}
    for whole, thing in {**found, **BESIDE}.items():
        name = whole.rpartition(".")[2]
        out += ["", f"## {whole}", ""]
        out += _class(name, thing) if inspect.isclass(thing) else _function(f"scale0.{name}", thing)
    return "\n".join(out).rstrip() + "\n"


def _class(name: str, thing: type) -> list[str]:
    out = [*_signature(name, thing), "", *_docstring(thing)]
    for member, value in sorted(vars(thing).items()):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            out += ["", f"### {name}.{member}", "", *_docstring(value)]
        elif inspect.isroutine(value):
            plain = inspect.unwrap(getattr(value, "__func__", value))
            out += ["", f"### {name}.{member}()", "", *_function(f"{name}.{member}", plain)]
    return out


def _function(name: str, thing: Any) -> list[str]:
    return [*_signature(name, thing), "", *_docstring(thing)]


class _Plain:
    """An annotation that is shown as it stands in the source, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _plain(each: inspect.Parameter) -> str:
    return str(each.replace(annotation=_Plain(each.annotation)) if isinstance(each.annotation, str) else each)


def _signature(name: str, thing: Any) -> list[str]:
    try:
        found = inspect.signature(thing)
    except ValueError:  # made by the interpreter: it says nothing of itself
        return [f"    {name}(…)"]
    parts = [_plain(each) for each in found.parameters.values() if each.name != "self"]
    result = "" if found.return_annotation is inspect.Signature.empty else f" -> {found.return_annotation}"
    if inspect.isclass(thing):
        result = ""
    if inspect.iscoroutinefunction(thing):
        name = f"await {name}"
    text = f"{name}({', '.join(parts)}){result}"
    if len(text) <= 110:
        return [f"    {text}"]
    return [f"    {name}(", *(f"        {part}," for part in parts), f"    ){result}"]


def _docstring(thing: Any) -> list[str]:
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    return [line.rstrip() for line in lines]
