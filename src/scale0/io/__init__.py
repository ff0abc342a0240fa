"""The only room with sockets, clocks and files.

Reading order: `compose` (how a broker is put together), `door` (one ZeroMQ socket), `commits` (the writer thread),
`runner` (turns), `answers` (what Asks find), `process` (a broker from its file to its last breath), `link` (a client's
end).
"""
