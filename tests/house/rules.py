"""The house rules for source files, as pure functions from text to complaints.

Lives here: what is forbidden, and how to see it in a syntax tree. Never here: reading a file.
Invariant: a complaint names the line and the reason; no complaint means that the rule is kept.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "scale0"
ROOT: Final = ""
"""The room of files that lie in no room: the package itself."""

FLOORS: Final = (
    ("base",),
    ("store", "config", "events"),
    ("broker", "majordomo", "zerotask", "equus"),
    ("io",),
    ("management", "client", "pipeline", "testing"),
    ("cli",),
)
"""From the ground up: a room may import every room on a lower floor."""

STRANGERS: Final = frozenset({"broker", "majordomo", "zerotask", "equus"})
"""Rooms that never import each other, though they share a floor."""

FLOOR_OF: Final = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
PURE_ROOMS: Final = frozenset({"base", "events", "config", *STRANGERS})

ONLY_IN: Final = {"zmq": "io", "pyspark": "pipeline"}
"""Foreign packages that have one room."""

MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 50

FORBIDDEN_MODULES: Final = frozenset(
    {
        *("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "multiprocessing"),
        *("xml.etree", "xml.sax", "xml.dom", "pty", "code"),
    }
)
"""Of multiprocessing even the pipes pickle: our processes talk by lines of JSON."""
FORBIDDEN_NAMES: Final = frozenset(
    {
        *("eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__"),
        *("os.system", "os.popen", "asyncio.create_subprocess_shell", "subprocess.getoutput"),
        *("subprocess.getstatusoutput", "concurrent.futures.ProcessPoolExecutor"),
        *(f"yaml.{name}" for name in ("load", "load_all", "full_load", "unsafe_load", "Loader", "UnsafeLoader")),
        "pandas.read_pickle",
    }
)
FORBIDDEN_METHODS: Final = frozenset({"subprocess_shell", "to_pickle", "read_pickle"})
"""Whatever they belong to: a loop's, a frame's."""
FORBIDDEN_FLAGS: Final = frozenset({"shell", "allow_pickle"})

IMPURE_MODULES: Final = frozenset(
    {
        *("asyncio", "uvloop", "socket", "select", "selectors", "ssl", "http", "urllib.request", "socketserver"),
        *("threading", "multiprocessing", "concurrent", "subprocess", "signal", "sqlite3", "psycopg", "tempfile"),
    }
)
"""Whoever imports one of these wants to wait, to talk or to write."""

IMPURE_NAMES: Final = frozenset(
    {
        *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "sleep")),
        *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")),
        *(f"time.{name}" for name in ("localtime", "gmtime", "ctime", "clock_gettime")),
        *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
        *("datetime.date.today", "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"),
        *(
            f"secrets.{name}"
            for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")
        ),
        *("open", "io.open", "os.open", "input", "print"),
    }
)
"""Clocks, dice and files. `random.Random(seed)` is none of them: it is told what to say."""

UNHELPFUL_WORDS: Final = ("Manager", "Handler", "Helper", "Util")
"""Parts of a class name that say nothing about what it is."""


def complaints(source: str, room: str) -> list[str]:
    """Everything that is wrong with one file of `room`."""
    tree = parsed(source)
    found = [*size(tree, source), *names(tree), *imports(tree, room), *dangers(tree)]
    if room in PURE_ROOMS:
        found += impurities(tree)
    return found


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """The tree of a file; kept while more is asked of it."""
    return ast.parse(source)


@lru_cache(maxsize=1)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All of a file; kept while it is asked for again, since the walk takes longer than any rule."""
    return tuple(ast.walk(tree))


def size(tree: ast.Module, source: str) -> Iterator[str]:
    """A file opens with its docstring and fits in one sitting; a function fits on a screen."""
    if not ast.get_docstring(tree):
        yield "1: no module docstring"
    if (lines := len(source.splitlines())) > MAX_FILE_LINES:
        yield f"{lines}: the file has {lines} lines, more than {MAX_FILE_LINES}"
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"


def names(tree: ast.Module) -> Iterator[str]:
    """A class is named for what it is."""
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef) and any(word in node.name for word in UNHELPFUL_WORDS):
            yield f"{node.lineno}: the name {node.name} says nothing"


def imports(tree: ast.Module, room: str) -> Iterator[str]:
    """Who may import whom, imports for type checking included."""
    for line, module in imported(tree):
        package = module.partition(".")[0]
        if package in ONLY_IN and ONLY_IN[package] != room:
            yield f"{line}: {package} is imported in {ONLY_IN[package]}/ only"
        other = room_of(module)
        if other is not None and not may_import(room, other):
            yield f"{line}: {room or PACKAGE} may not import {other or PACKAGE}"


def may_import(room: str, other: str) -> bool:
    """True when `room` may know `other`; rooms that share a floor may, unless they are strangers."""
    if room in (other, ROOT):
        return True
    if other == ROOT or other not in FLOOR_OF or room not in FLOOR_OF:
        return False
    if {room, other} <= STRANGERS:
        return False
    return FLOOR_OF[other] <= FLOOR_OF[room]


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each import as its line and a dotted name; `from scale0 import io` is `scale0.io`."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                yield node.lineno, f"{PACKAGE}.<relative>"
            else:
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def room_of(module: str) -> str | None:
    """The room that a dotted name lies in; None for what is not ours, or is everybody's."""
    package, *parts = module.split(".")
    if package != PACKAGE or parts == ["__version__"]:
        return None
    return parts[0] if parts and (parts[0] in FLOOR_OF or parts[0] == "<relative>") else ROOT


def within(module: str, modules: frozenset[str]) -> bool:
    """True for one of `modules`, or a part of one."""
    return any(module == other or module.startswith(other + ".") for other in modules)


def dangers(tree: ast.Module) -> Iterator[str]:
    """Foreign input never becomes code, and no shell is asked."""
    for line, module in imported(tree):
        if within(module, FORBIDDEN_MODULES):
            yield f"{line}: {module} is forbidden"
    for line, name in references(tree):
        if name in FORBIDDEN_NAMES:
            yield f"{line}: {name} is forbidden"
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_METHODS:
            yield f"{node.lineno}: {node.attr} is forbidden"
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in FORBIDDEN_FLAGS and not is_constant(keyword.value, False):
                    yield f"{node.lineno}: {keyword.arg} is not turned on"


def is_constant(node: ast.expr, value: object) -> bool:
    """True for the literal `value` itself."""
    return isinstance(node, ast.Constant) and node.value is value


def impurities(tree: ast.Module) -> Iterator[str]:
    """A pure room is told the time and the randomness, and touches nothing."""
    for line, module in imported(tree):
        if within(module, IMPURE_MODULES):
            yield f"{line}: {module} does not belong in a pure room"
    for line, name in references(tree):
        dice = name.startswith("random.") and name.count(".") == 1 and name != "random.Random"
        if name in IMPURE_NAMES or dice:
            yield f"{line}: {name} does not belong in a pure room"


def references(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that is used, as its line and what it stands for: after `import time as t`, `t.time` is `time.time`.

    A mention is enough: a clock that is only passed on is still a clock.
    """
    meanings: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                meanings[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    own = {node.name for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    arguments = {node.arg for node in nodes(tree) if isinstance(node, ast.arg)}
    stored = {node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local = own | arguments | stored
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            dotted = spelled(node)
            first, _, rest = dotted.partition(".")
            if first in meanings:
                yield node.lineno, f"{meanings[first]}.{rest}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in meanings:
                yield node.lineno, meanings[node.id]
            elif node.id not in local:
                yield node.lineno, node.id


def spelled(node: ast.expr) -> str:
    """`a.b.c` as text; empty where something else than names is in between."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := spelled(node.value)):
        return f"{before}.{node.attr}"
    return ""


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of rooms that import each other, or nothing."""
    done: set[str] = set()

    def walk(room: str, path: list[str]) -> list[str]:
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return []
        for other in sorted(edges.get(room, ())):
            if found := walk(other, [*path, room]):
                return found
        done.add(room)
        return []

    for room in sorted(edges):
        if found := walk(room, []):
            return found
    return []
