"""The broker process: composition, start and stop."""
