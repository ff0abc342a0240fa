"""Certificates of agents: the authority, enrolment and revocation."""
