"""The rules for source files, as pure functions from text to complaints: layers, purity, size, forbidden calls.

A complaint names the line and the reason; no complaint means that the file keeps the rules.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "scale0"
LAYERS: Final = (
    ("kernel",),
    ("config", "history.events"),
    ("storage",),
    ("history.segments",),
    ("transport",),
    ("broker",),
    ("tasks",),
    ("compat",),
    ("broker.main",),
    ("errors",),
    ("client", "monitoring"),
    ("pipeline",),
    ("http",),
    ("testing", "cli"),
)
"""Subjects from the bottom up: a subject may import every subject of a lower layer, and itself.

`broker.main` composes the broker, its tasks and the other protocols: it is above them, and the rest of `broker` never
imports it.
"""

LAYER_OF: Final = {subject: number for number, subjects in enumerate(LAYERS) for subject in subjects}
SUBJECTS: Final = frozenset(subject.partition(".")[0] for subject in LAYER_OF)
PURE: Final = (
    *("kernel", "config", "history.events", "transport.core", "broker.core", "broker.admin", "broker.cluster"),
    *("tasks", "compat", "monitoring.protocol", "monitoring.helen.core", "monitoring.agent.core"),
)
"""Packages without I/O, clocks, randomness and threads; an `edge` package inside one is not pure."""

ONLY_IN: Final = {
    "zmq": (),
    "pyspark": ("pipeline",),
}
"""Third-party packages that only some packages import."""

MAX_FILE_LINES: Final = 600
MAX_FUNCTION_LINES: Final = 60

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
"""Clocks, dice and files. `random.Random(seed)` is none of them: its seed decides."""

UNHELPFUL_WORDS: Final = ("Manager", "Helper", "Util")
"""Parts of a class name that say nothing about what it is."""


def complaints(source: str, module: str) -> list[str]:
    """Everything that is wrong with one file; `module` is its dotted name below `scale0`."""
    tree = parsed(source)
    found = [*size(tree, source), *names(tree), *imports(tree, module), *dangers(tree)]
    if is_pure(module):
        found += impurities(tree)
    return found


def is_pure(module: str) -> bool:
    """True for a module of a pure package."""
    return inside(module, PURE) and "edge" not in module.split(".")


def inside(module: str, packages: tuple[str, ...]) -> bool:
    """True for a module of one of these packages, or one of them itself."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


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


def imports(tree: ast.Module, module: str) -> Iterator[str]:
    """Which modules may import which, imports for type checking included."""
    for line, other in imported(tree):
        package, _, name = other.partition(".")
        if package in ONLY_IN and not inside(module, ONLY_IN[package]):
            yield f"{line}: {package} is imported in {', '.join(ONLY_IN[package])} only"
        if package == PACKAGE and name != "__version__" and not may_import(module, name):
            yield f"{line}: {module or PACKAGE} may not import {name or PACKAGE}"


def may_import(module: str, other: str) -> bool:
    """True if `module` may import `other`: of one subject, or `other` in a lower layer; core never imports edge."""
    if not module or module == "__main__":
        return True
    if is_pure(module) and "edge" in other.split("."):
        return False
    own, its = subject_of(module), subject_of(other)
    if own is None or its is None:
        return False
    return own == its or LAYER_OF[its] < LAYER_OF[own]


def subject_of(module: str) -> str | None:
    """The longest prefix of a dotted name that has a layer."""
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LAYER_OF), None)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each import as its line and a dotted name; `from scale0 import io` is `scale0.io`."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                yield node.lineno, f"{PACKAGE}.relative"
            else:
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


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
    """A pure module is given the time and the randomness, and does no I/O."""
    for line, module in imported(tree):
        if within(module, IMPURE_MODULES):
            yield f"{line}: {module} does not belong in a pure package"
    for line, name in references(tree):
        dice = name.startswith("random.") and name.count(".") == 1 and name != "random.Random"
        if name in IMPURE_NAMES or dice:
            yield f"{line}: {name} does not belong in a pure package"


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
