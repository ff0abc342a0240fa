"""The PySpark pipeline: segments in, tables out.

Lives here: functions from frame to frame with explicit schemas. Never here: a network, or a machine.
Invariant: running a period again changes nothing.
"""
