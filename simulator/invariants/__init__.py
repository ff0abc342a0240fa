"""What every simulated network must keep."""
