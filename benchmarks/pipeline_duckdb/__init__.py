"""The yardstick: every table of the pipeline, computed by DuckDB's SQL from the same segments."""
