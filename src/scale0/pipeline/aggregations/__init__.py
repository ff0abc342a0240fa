"""Families: tables that step from hour to hour."""
