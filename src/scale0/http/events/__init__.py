"""Events for the HTTP server: the live stream, pages, the timeline of a task, and the series of a check.

Reading order: `event_index` (the events of this machine, and cursors), `stream`, `pages`, `task_timeline`,
`check_series`. Everything is read from journals and segments, in threads, and every read has a limit.
"""
