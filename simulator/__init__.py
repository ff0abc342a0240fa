"""Simulation of whole networks with virtual time, seeds and faults; not part of the wheel."""
