"""`python -m simulator.history`: write a synthetic history."""

from simulator.history.command import synth

synth(prog_name="python -m simulator.history")
