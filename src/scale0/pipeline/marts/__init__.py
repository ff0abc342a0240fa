"""Marts: tables computed from whole parts of other tables."""
