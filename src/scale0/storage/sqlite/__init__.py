"""The store in SQLite: the default, one file in the data directory."""
