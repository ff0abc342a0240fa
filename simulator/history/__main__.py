"""`python -m simulator.history`: write a synthetic history."""

from simulator.history.command import generate_history

generate_history(prog_name="python -m simulator.history")
