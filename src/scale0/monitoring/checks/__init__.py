"""Built-in checks: what an agent can measure by itself, with psutil and the standard library.

Start at `registry`. One file per check, each with its `Args` and its `measure`; no check starts a program.
"""
