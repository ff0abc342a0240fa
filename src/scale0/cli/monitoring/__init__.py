"""Commands about agents, checks, incidents and Helen."""
