"""Metrics of a broker and its network: pulled by Prometheus, pushed to Graphite, StatsD and OTLP receivers.

Reading order: `sample` (what was read), `catalog` (every metric), `model` (a sample as metrics), the formats
(`prometheus`, `line_protocols`, `otlp`), `senders` (the sockets), `exports` (when to push), `sampler` (when to read).
"""
