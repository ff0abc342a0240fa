"""Reports: the numbers of the warehouse, made for people.

Reading order: `shape` (what a report is), `period` and `desk` (what is asked, of whom), `notes` (how far to believe
it), one file for each report, `catalogue` (all of them), `words`, `drawing` and `page` (how they look). Never here:
Spark, or a terminal. Invariant: a report is made of the rows of one manifest, and says up to when and how complete
they are.
"""
