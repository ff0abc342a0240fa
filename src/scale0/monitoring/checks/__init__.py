"""Built-in checks: what an agent measures by itself, with psutil and the standard library.

Start at `registry`. Each check has its own module, with its `Args` and its function `measure`; no check starts a
program.
"""
