"""The HTTP API, exports, and the console's built pages.

Lives here: views of a broker's state, and messages that change it. Never here: state of its own.
Invariant: there is one way to change anything, and it is a message to the broker.
"""
