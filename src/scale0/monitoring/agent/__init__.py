"""The agent: what runs on a monitored machine."""
