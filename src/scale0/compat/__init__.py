"""Adapters for other protocols on the same broker."""
