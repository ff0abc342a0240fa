"""Configuration files on disk."""
