"""Durable state behind one interface: `memory`, `sqlite` (the default) and `postgres` (shared by a group).

Read `rows`, `task_rows`, `task_queries` and `check_rows` for what a commit and a query contain, then `interface`.
"""
