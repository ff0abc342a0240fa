"""Reports computed from the warehouse.

Reading order: `model` (the structure of a report), `period` and `query` (the question, and the reader that answers it),
`data_quality` (notes on completeness), one file for each report, `catalog` (all of them), `formatting`, `plots` and
`html` (rendering). A report is computed from one manifest, and states how recent and how complete its data are.
"""
