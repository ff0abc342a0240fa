"""The shared store in memory: what PostgreSQL does for a group, without PostgreSQL."""
