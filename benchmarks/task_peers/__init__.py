"""The ends of each durable task queue that `benchmarks.tasks` measures: one file for each, a worker and a client in it.

Run as `python -m benchmarks.task_peers.NAME worker PLACE` or `… client PLACE MEASURE COUNT`, by an interpreter that has
what the file imports. A worker prints `ready`, or the client's first task waits for it; a client prints one JSON line.

Measures, the same for all:

    results   COUNT tasks that do nothing, submitted and their results fetched: `rate`, tasks a second
    submit    COUNT tasks submitted to where nobody works, until all are acknowledged: `rate`
    single    COUNT tasks one after the other, from submission to result in hand: `p50` and `p99`, in microseconds
"""
