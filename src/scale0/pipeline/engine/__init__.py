"""The engine: what runs the families and derivations over a warehouse, hour by hour.

Lives here: frames from listed files, files from frames, the step with its carry, and the runs that use it. Never here:
the meaning of a column. Invariant: `run`, `stream` and `backfill` all go through `advance`, so they make equal tables.
"""
