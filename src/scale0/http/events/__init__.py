"""What the management server tells of events: live, page by page, as a task's story, as a check's series.

Reading order: `vector` (where a reader stands), `library` (what the folders of this machine hold), `feed` and
`listener` (the live stream), `pages`, `story`, `series`. Never here: HTTP, or a write. Invariant: everything is read
from journals and segments, off the loop, and every read has a limit.
"""
