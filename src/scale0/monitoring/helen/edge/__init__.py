"""Helen as a process: sockets, threads, files and clocks around `monitoring.helen.core.helen`.

Reading order: `process`, `composition`; `tls_server` with `listener`, `tls_connection` and `tls` (agents);
`network_backend` (requests and tasks); `answers` with `network_client` (Helen's own requests); `notifier` with
`notification_command` (deliveries).
"""
