"""Who may do what over HTTP.

Read `gate` for what every request must be like, `who` for whom a token is, `guard` for roles, `buckets` for how often
somebody may be wrong. Nothing here decides what a role may do at the broker: the broker does, for every command.
"""
