"""The store that the brokers of a group share: a PostgreSQL schema."""
