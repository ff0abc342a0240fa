"""Segments: the journal of one source, written out as Parquet files that outlive it.

Reading order: `names` (where one stands), `arrow` (what is in one), `place` (a folder or an object store), `writer`
(one segment after the other), `child` (the process that does it), `words` and `scribe` (that process, as its parent
sees it), `history` and `filters` (segments and journal as one). Invariants: an event leaves the journal only after it
stands in a segment that survives a loss of power; pyarrow is imported by that process and by readers, never by a
broker, Helen or an agent.
"""
