"""Events, their one schema, and the journal that numbers them; nothing here does I/O.

Read `columns` (the schema), `kinds` (the registry; one module per noun beside it), `histogram` and `journal`.
"""
