"""`scale0 top`."""
