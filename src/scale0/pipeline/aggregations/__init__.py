"""Aggregations: tables computed hour by hour."""
