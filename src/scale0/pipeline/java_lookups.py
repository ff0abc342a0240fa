"""Java's classes and methods as Python asks for them: each is looked for once.

Lives here: what is remembered of Java. Never here: a query. Invariants: it is all static methods, which never change;
several threads may ask at once, and the worst is that two of them look.

For each column that a query names, PySpark asks Java for a class, then for its method, and only then calls it. Java
looks for the class under names that do not exist first, in each of Spark's 280 archives: that was a twentieth of what
Java did in a small run, and two of three questions.
"""

from __future__ import annotations

from typing import Any, Final

NAMES: Final = ("functions", "org.apache.spark.sql.functions", "PythonSQLUtils", "PythonUtils")
"""What PySpark asks for while it makes columns and frames."""


class JavaLookups:
    """A class of Java's whose methods are remembered."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._java, name)
        setattr(self, name, method)
        return method


def look_once(jvm: Any) -> None:
    """From now on PySpark asks for these once."""
    for name in NAMES:
        if name not in vars(jvm):
            setattr(jvm, name, JavaLookups(getattr(jvm, name)))
