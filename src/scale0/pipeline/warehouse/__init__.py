"""The warehouse: the pipeline's files on disk, and the manifest that lists the current ones.

Reading order: `records` (contents of a manifest), `warehouse` (the directory), `staging` (files of one run),
`transaction` (an edit of the newest manifest, and its commit), `segment_sources` (new segments), `inspection`
(validation), `ingestion` and `deduplication` (each event once), `compaction`, `retention`.

A reader sees all tables from before a run or all tables from after it. A file that a manifest lists is never modified.
The segment directories are never modified.
"""
