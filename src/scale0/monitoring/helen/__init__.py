"""Helen: the monitoring server."""
