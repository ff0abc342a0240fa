"""Segments: the journal of one source, exported as Parquet files that outlive it.

`writer`, `exporter_process` and `exporter` export; `reader`, `catalog` and `event_reader` read. An event leaves the
journal only after it is in a durable segment. Only the exporter process and readers import pyarrow, never a broker,
Helen or an agent.
"""
