"""Helen as a process: her TLS door, her place on the network, and what she does outside of her machine.

Lives here: sockets, threads, files and clocks around `monitoring.helen.core.helen`. Never here: what an agent's line
means.

Reading order: `process` (from her file to her last breath), `compose` (her machine from her store), `door` with
`listener`, `connection` and `tls` (agents), `network` with `tether` (requests and tasks), `answers` with `asks` (what
she asks for herself), `notify` with `dial` and `command` (notices go out).
"""
