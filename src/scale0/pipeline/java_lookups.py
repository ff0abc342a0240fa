"""Caches PySpark's lookups of Java classes and methods."""

from __future__ import annotations

from typing import Any, Final

NAMES: Final = ("functions", "org.apache.spark.sql.functions", "PythonSQLUtils", "PythonUtils")
"""What PySpark looks up while it builds columns and frames."""


class JavaLookups:
    """Caches the static methods of one Java class.

    PySpark looks up a class and a method for each column of a query, and Java first tries names that do not exist in
    each of Spark's 280 archives: a twentieth of Java's time in a small run, and two of three calls.
    """

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._java, name)
        setattr(self, name, method)
        return method


def look_once(jvm: Any) -> None:
    for name in NAMES:
        if name not in vars(jvm):
            setattr(jvm, name, JavaLookups(getattr(jvm, name)))
