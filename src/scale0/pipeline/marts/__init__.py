"""Derivations: tables made of whole parts of other tables."""
