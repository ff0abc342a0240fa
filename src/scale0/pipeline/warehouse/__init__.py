"""The warehouse: what the pipeline keeps, and the one manifest that says what counts.

Reading order: `records` (what a manifest says), `warehouse` (the folder), `attempt` (files of one run), `draft` (an
edit of the newest manifest), `commit` (the fence), `places` and `listing` (which segments are new), `inspection`
(which are good), `adoption` and `overlap` (each event once), `compaction`, `merging`, `retention` and `collection`
(what goes).
Never here: Spark, or what a table means. Invariants: a reader sees all tables before a run or all tables after it; a
file that a manifest names is never changed; nothing of the segments' own folder is ever changed.
"""
