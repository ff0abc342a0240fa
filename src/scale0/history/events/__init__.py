"""What happened: the events, their one schema, and the journal that numbers them.

Reading order: `columns` (the schema), `kinds` (the registry; one file per noun beside it), `histogram`, `journal`.
Nothing here does I/O, and nothing here imports another room than `base`.
"""
