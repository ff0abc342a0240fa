"""The agent: the process that runs checks on a monitored machine.

Reading order: `stage0` (the supervisor), `process` (start and stop), `agent` (executes what session, schedule and spool
decide), `tls_client` (the connection to Helen), `log_segment` and `spool` (results on disk until Helen has stored
them), `running_checks`, `certificate` (identity and renewal). Checks in processes of their own:
`process_launcher` and `launcher_process`, `sandbox` and `cgroup`, `plugins` and `plugin_runner`, `lua_*`.
"""
