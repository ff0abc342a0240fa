"""What the examples of the command line's help need, and how they end, where that is not 0.

A row that no example needs is an error, so that the tables shrink with the help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

HERE: Final = "web-1"
NEW: Final = "web-2"


@dataclass(frozen=True)
class Needs:
    """What the examples of one help need: on which machine they are typed, what before and after them, and what the
    words that stand for something stand for."""

    on: str = HERE
    before: str = ""
    means: Mapping[str, str] = field(default_factory=dict)
    after: str = ""


@dataclass(frozen=True)
class Stays:
    """An example that goes on until Ctrl-C: what says that it is under way, and how it ends then."""

    says: str
    status: int = 130
    on: str = ""


FRESH: Final = "mkdir -p fresh && cd fresh"
FINISHED: Final = "ID=$(scale0 task submit math.add 2 3); OTHER=$(scale0 task submit math.add 3 4)"
FAILED: Final = "ID=$(scale0 task submit math.add two --max-attempts 1); ! scale0 task wait $ID"
LATER: Final = "ID=$(scale0 task submit math.add 2 3 --delay 3600)"
IDS: Final = {"0f3a9c": "$ID", "1b2c3d": "$OTHER", "ID": "$ID"}
PEER: Final = {"< token": "<<< $(token_for peer)"}
BACKEND: Final = {"< token": "<<< $(token_for backend)"}
FRONTEND: Final = {"< token": "<<< $(token_for frontend)"}
HELEN: Final = "--data-dir /var/lib/scale0/helen"
AGENT_TOKEN: Final = f"$(scale0 helen token --name web-1 {HELEN})"
AGENT: Final = {"enrol helen.example.com --token - < token": f"enrol helen.example.com --token - <<< {AGENT_TOKEN}"}
ENROL: Final = f"scale0 agent enrol helen.example.com --force --token - <<< {AGENT_TOKEN}"
PLUGIN: Final = "printf 'plugins\n    name = my-plugin\n    command = /srv/my-plugin\n' >> agent/agent.zpl"
AWAY: Final = (
    f"{ENROL}; scale0 agent --config agent/agent.zpl > agent.log 2>&1 &"
    " until grep 'Helen accepted the session' agent.log; do sleep 0.05; done; kill %%; wait %%"
)
PAGER: Final = "scale0 handler add pager --webhook http://127.0.0.1/hook"
HOOK: Final = {"https://example.com/hook": "http://127.0.0.1/hook"}
VERSION: Final = "$(scale0 config show --json | jq .version)"
NOW: Final = {"--expect 7": f"--expect {VERSION}", "--expect 9": f"--expect {VERSION}", "7 9": "2 3", "7": "2"}
IGNORED: Final = "$(scale0 error-clients --json | jq -r '.[0].client')"
NONSENSE: Final = Needs(before="python3 nonsense.py", means={"frontend/1f2e3d4c5b": IGNORED})
EAST: Final = "--join 10.0.0.1 --data-dir var/east-1"
OPERATOR: Final = {"--token @token": f"--token - <<< $(scale0 access issue ops --role operator {EAST})"}
JOINED: Final = (
    "scale0 keys revoke frontend web-1 --data-dir var/east-1 > revoked 2>&1;"
    " rm -f ~/.config/scale0/keys/frontend-10.0.0.1-5700.key_secret;"
    " scale0 keys join frontend 10.0.0.1 --token - <<< $(token_for frontend)"
)
"""An earlier example may have joined by this name with another pair."""
GRANTED: Final = "scale0 keys permissions frontend web-1 --data-dir var/east-1 --add 'call:helen.*'"
CALLER: Final = "scale0 keys join frontend broker.example.com --name caller --token - <<< $(token_for frontend)"
ENABLE: Final = "scale0 enable && until scale0 agents > helen.log 2>&1; do sleep 0.05; done"
"""A broker that is out of service disconnects its clients: the examples go on when Helen is connected again."""
ENABLED: Final = f"scale0 enable {EAST}; {ENABLE}"
EACH_COPY: Final = "for folder in .scale0 var/east-1; do mkdir -p $folder; python3 -c"
COPIES: Final = (
    f'mkdir -p copies && cd copies && {EACH_COPY} \'import sqlite3, sys; sqlite3.connect("../var/east-1/scale0.db")'
    '.backup(sqlite3.connect(sys.argv[1] + "/scale0.db"))\' $folder; done'
)
LOSSES: Final = (
    f"{COPIES}; {EACH_COPY} 'import pathlib, sys; from scale0.storage.sqlite.commit_mark import CommitMark, MARK_NAME;"
    " CommitMark(pathlib.Path(sys.argv[1], MARK_NAME)).write(1_000_000, 0)' $folder; done"
)
"""Copies of the broker's database, and marks of commits that they do not have."""
DEPLOY: Final = "$(scale0 access list --json | jq -r '[.[] | select(.name == \"deploy\")][0].id')"
TABLES: Final = Needs(on=NEW, before="cd tables", after="cd")
QUIET: Final = Needs(on=NEW, before="cd quiet", after="cd")
"""Nothing is new there, so that Spark has nothing to do: what it does is tested in `tests/pipeline`."""

ALIKE: Final = [
    ("report", ["availability", "tasks", "requests", "checks", "incidents", "capacity", "noise", "all"], TABLES),
    ("pipeline", ["", "run", "status", "show"], TABLES),
    ("task", ["", "status", "wait", "show"], Needs(before=FINISHED, means=IDS)),
    ("events", ["tail"], Needs(before=FINISHED, means=IDS)),
    ("explain", [""], Needs(before=FINISHED, means=IDS)),
    ("agent", ["", "renew", "revoke"], Needs(before=ENROL)),
    ("config", ["", "show", "diff", "rollback"], Needs(means=NOW)),
    ("handler", ["test", "remove"], Needs(before=PAGER)),
]
"""Commands of a noun that need the same; the empty verb is the noun itself."""
NEEDS: Final[Mapping[str, Needs]] = {
    **{f"scale0 {noun} {verb}".rstrip(): needs for noun, verbs, needs in ALIKE for verb in verbs},
    "scale0 broker": Needs(on=NEW, before=FRESH + " && cp ../east-1.zpl .", means=PEER, after="cd"),
    "scale0 worker": Needs(
        before="scale0 keys join backend broker.example.com --name shop --token - <<< $(token_for backend)",
        means=BACKEND,
    ),
    "scale0 helen": Needs(on=NEW, before=FRESH, after="cd"),
    "scale0 helen init": Needs(
        on=NEW, before="mkdir anew lib && mount --bind lib /var/lib && cd anew", after="cd; umount /var/lib"
    ),
    "scale0 helen token": Needs(on=NEW, before="scale0 helen init"),
    "scale0 agent enrol": Needs(
        before=f"rm -rf agent; scale0 helen token --name web-1 {HELEN} > token",
        means=AGENT,
    ),
    "scale0 agent forget": Needs(
        before=f"{JOINED}; {GRANTED}; {AWAY}; export SCALE0_JOIN=10.0.0.1", after="unset SCALE0_JOIN"
    ),
    "scale0 call": Needs(means=FRONTEND),
    "scale0 task result": Needs(before=FINISHED + "; scale0 task wait $ID", means=IDS),
    "scale0 task cancel": Needs(before=LATER, means=IDS),
    "scale0 task retry": Needs(before=FAILED),
    "scale0 error-clients": NONSENSE,
    "scale0 error-clients forgive": NONSENSE,
    "scale0 check": Needs(after="scale0 check remove disks"),
    "scale0 check add": Needs(
        before=PAGER,
        after="for name in disks web root; do scale0 check remove $name; done; scale0 handler remove pager",
    ),
    "scale0 check change": Needs(before=PAGER, after="scale0 handler remove pager"),
    "scale0 check remove": Needs(before="scale0 check add disks --check disk"),
    "scale0 check test": Needs(before=f"{ENROL}; {PLUGIN}"),
    "scale0 report": replace(TABLES, means={"2026-11-01": "2026-05-11", "2026-11-08": "2026-05-18"}),
    "scale0 handler": Needs(means=HOOK, after="scale0 check change load --handler ''"),
    "scale0 handler add": Needs(means=HOOK),
    "scale0 silence end": Needs(before="scale0 silence add --agent '*' --for 1h --name move"),
    "scale0 downtime end": Needs(before="scale0 downtime add --agent '*' --for 1h --name move"),
    "scale0 pipeline backfill": QUIET,
    "scale0 pipeline stream": QUIET,
    "scale0 config set": Needs(before="scale0 config show --form zpl > network.zpl", means=NOW),
    "scale0 enable": Needs(before=JOINED, means=OPERATOR),
    "scale0 disable": Needs(before=JOINED, means=OPERATOR, after=ENABLED),
    "scale0 drain": Needs(before=JOINED, means=OPERATOR, after=ENABLED),
    "scale0 reload": Needs(
        before=f"{JOINED}; export SCALE0_JOIN=10.0.0.1 SCALE0_DATA_DIR=var/east-1",
        after="unset SCALE0_JOIN SCALE0_DATA_DIR",
    ),
    "scale0 store check": Needs(before=COPIES, after="cd; rm -r copies"),
    "scale0 store accept-loss": Needs(before=LOSSES, after="cd; rm -r copies"),
    "scale0 keys": Needs(before="scale0 keys init"),
    "scale0 keys new": Needs(
        before="scale0 keys init; rm -f web-1.key_secret", after="scale0 keys revoke backend web-1"
    ),
    "scale0 keys revoke": Needs(before="scale0 keys init; rm -f web-1.key_secret; scale0 keys new backend web-1"),
    "scale0 keys rotate-server": Needs(before="scale0 keys init"),
    "scale0 keys rotate-server start": Needs(before="scale0 keys init"),
    "scale0 keys rotate-server status": Needs(before="scale0 keys init"),
    "scale0 keys rotate-server finish": Needs(before="scale0 keys init"),
    "scale0 keys expire": Needs(
        before="scale0 keys init; rm -f web-1.key_secret; scale0 keys new backend web-1",
        after="scale0 keys revoke backend web-1",
    ),
    "scale0 keys permissions": Needs(
        before="scale0 keys init; scale0 keys new frontend web; scale0 keys new frontend helen-2",
        after="for name in web helen-2; do scale0 keys revoke frontend $name; rm $name.key_secret; done",
    ),
    "scale0 token": Needs(before="scale0 keys init"),
    "scale0 keys join": Needs(on=NEW, before="token_for backend > token", means=FRONTEND),
    "scale0 access revoke": Needs(
        before="scale0 access issue grafana; scale0 access issue deploy", means={"1f2e3d4c5b6a": DEPLOY}
    ),
    "scale0 management": Needs(on=NEW, before=JOINED.replace("web-1", NEW)),
    "scale0 management serve": Needs(before=JOINED),
    "scale0 completion": Needs(before="mkdir -p ~/.config/fish/completions"),
    "scale0 doctor": Needs(on=NEW, before=CALLER.replace("caller", "doctor")),
    "scale0 bench": Needs(before=CALLER),
    "docs/troubleshooting.md": Needs(
        before=f"{FINISHED}; {ENROL}; scale0 keys init",
        means={
            **IDS,
            "AGENT CHECK": "web-1 load",
            "--config FILE": "--config agent/agent.zpl",
            "helen init --name": "helen init named --name helen.example.com",
        },
    ),
    "docs/parity.md": Needs(
        before=f"{FINISHED}; scale0 config show --form zpl > network.zpl; python3 nonsense.py; {JOINED}",
        means={
            **IDS,
            "task retry ID": f"task retry $({FAILED} > failed; echo $ID)",
            "task cancel ID": f"task cancel $({LATER}; echo $ID)",
            "access revoke ID": "access revoke $(scale0 access issue deploy --json | jq -r .id)",
            "BROKER": "web-1",
            "disable BROKER": f"disable web-1 && {ENABLE}",
            "drain BROKER": f"drain web-1 && {ENABLE}",
            "reload BROKER": f"reload east-1 {EAST}",
            "CLIENT": IGNORED,
            "AGENT NAME": "web-1 load",
            "GLOB": "'*'",
            "TIME": "1h --name move",
            "end NAME": "end move",
            "issue NAME": "issue grafana",
            "ROLE": "viewer",
            "WHEN": "2030-05-01T22:00",
            "FILE": "network.zpl",
            "KEY=VALUE": "default_heartbeat_interval=1",
            "--expect VERSION": f"--expect {VERSION}",
            "VERSION": "2",
        },
    ),
}
"""By the command whose help it is, or the page; whatever is not here needs nothing."""

STAYS: Final[Mapping[str, Stays]] = {
    r"scale0 up\b": Stays("Ctrl-C ends it", 0, on=NEW),
    r"scale0 (?:broker|worker|management serve)\b": Stays("ready ", 0),
    r"scale0 helen --config": Stays("ready ", 0),
    r"scale0 agent --config": Stays("Helen accepted the session", 0),
    r"scale0 (?!task status).* --watch": Stays(""),
    r"scale0 events tail -f": Stays(""),
    r"scale0 demo": Stays("== "),
    r"scale0 chaos": Stays("chaos: "),
    r"scale0 bench": Stays("bench: "),
    r"scale0 pipeline stream": Stays("Ctrl-C ends it", 0),
}
"""By how an example begins."""

BUSY: Final = ((0, 1), "1 where something is critical: this machine may have too much to do")
UNFIT: Final = ((0, 1), "1 where this machine lacks something")
STATUS: Final[Mapping[str, tuple[tuple[int, ...], str]]] = {
    "scale0 checks": BUSY,
    "scale0 checks --problems": BUSY,
    "scale0 checks --agent 'web-*' --json | jq '.[] | select(.hard)'": BUSY,
    "scale0 check run web-1 load": BUSY,
    "scale0 incidents --all --agent 'web-*'": BUSY,
    "scale0 status": BUSY,
    "scale0 status --json | jq -r '.findings[].words'": BUSY,
    "scale0 check test process --arg name=nginx --arg crit=2:8": ((1,), "no nginx runs here"),
    "scale0 doctor": UNFIT,
    "scale0 doctor --config east-1.zpl": UNFIT,
    "scale0 doctor --join broker.example.com --json | jq '.[] | select(.state != \"ok\")'": UNFIT,
    "scale0 config diff 7": ((0, 1), "1 where the two differ"),
    "scale0 config diff 7 9 --json": ((0, 1), "1 where the two differ"),
    "scale0 config diff VERSION": ((0, 1), "1 where the two differ"),
    "scale0 check run AGENT CHECK": BUSY,
    "scale0 check run AGENT NAME": BUSY,
}
"""Exit statuses other than 0, each with its reason."""

CANNOT: Final[Mapping[str, str]] = {
    "scale0 pipeline run --segments s3://bucket/segments --warehouse /srv/warehouse": "there is no object store",
    "scale0 pipeline run --master spark://10.0.0.1:7077 --warehouse /mnt/shared/warehouse": "there is no Spark cluster",
}
