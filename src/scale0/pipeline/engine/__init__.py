"""The engine: runs the aggregations and marts over a warehouse, hour by hour.

`run`, `stream` and `backfill` all use `advance`, so they produce equal tables.
"""
