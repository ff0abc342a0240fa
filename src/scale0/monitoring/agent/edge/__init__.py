"""The agent: what runs on a watched machine.

Reading order: `stage0` (the supervisor), `process` (an agent from its file to its last breath), `agent` (what its
session says is done), `link` (TLS to Helen), `part` and `spool` (results on disk until Helen has them), `runs` and
`threads` (checks in hand), `checks` (who answers to a name), `plan` (the schedule on disk), `certificate` and `renewal`
(who we are). Beside them: `plugins`, `keeper`, `launcher`, `nursery`, `cage` and `cgroup` (checks in processes of their
own).
"""
