"""Events and their journal (`events`), and the Parquet files to which it is exported (`segments`)."""
