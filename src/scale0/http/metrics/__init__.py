"""Metrics: one model of what a network does, and the wires on which it leaves.

Reading order: `sample.py` (what was seen), `catalogue.py` (every metric, with its words), `model.py` (a sample as
metrics), `prometheus.py` (pulled), `graphite.py`, `statsd.py` and `otlp.py` (pushed: the forms), `senders.py` (the
sockets), `pushing.py` (when, and what is dropped), `exports.py` (all of them, started and stopped).
"""
