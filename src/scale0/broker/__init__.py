"""The Scale0 protocol, both ends: the broker's machines and the clients' sessions.

Reading order: `options` (what is said), `wire` (how it is framed), `connection` (who says it), `dispatch` (who may
say it, and when), `members` (negotiation and liveness), `roster` (slots and LRU), `requests`, `documents` (the network
document), `access` and `management`, `discovery`, and `broker`, which joins them. `session` is the other end.
"""
