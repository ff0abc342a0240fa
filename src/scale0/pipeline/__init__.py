"""The PySpark pipeline: it reads segments of events and writes tables to a warehouse.

Running a period again never changes its tables.
"""

from scale0.pipeline.reading import ask, open_arrow, open_duckdb, read, tables

__all__ = ["ask", "open_arrow", "open_duckdb", "read", "tables"]
