"""The PySpark pipeline: segments in, tables out.

Lives here: functions from frame to frame with explicit schemas, the engine that runs them, the warehouse that keeps
what they make, and its readers. Never here: a network, or a machine. Invariant: running a period again changes
nothing.
"""

from scale0.pipeline.reading import ask, open_arrow, open_duckdb, read, tables

__all__ = ["ask", "open_arrow", "open_duckdb", "read", "tables"]
