"""The Scale0 protocol, both ends: the broker's machines and the clients' sessions.

Reading order: `options` (what is said), `wire` (how it is framed), `connection` (who says it), `dispatch` (who may say
it, and when), `members` and `negotiation` (who is in, and how), `blame` (what bad input costs), `roster` (slots and
LRU), `requests`, `documents` (the network document), `access` and `management`, `views` and `discovery`, and `broker`,
which joins them. `line`, `frontend` and `backend` are the other end.
"""
