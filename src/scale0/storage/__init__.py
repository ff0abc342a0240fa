"""What must survive: one small interface, with a twin in memory and one in SQLite.

Reading order: `writes` (all that a commit and an ask can say), `interface`, `memory`, `sqlite`. `sqlite` is the one
place outside `io` that touches files: a store that did not would not be one.
"""
