"""Fuzzing of every parser of foreign bytes: `make fuzz SECONDS=60`. Not in the wheel."""
