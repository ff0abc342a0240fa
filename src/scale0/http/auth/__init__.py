"""Authentication, authorization and rate limits of the HTTP server.

The broker decides for every command what a role may do; these modules only refuse earlier.
"""
