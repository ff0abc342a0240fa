"""The HTML page of a campaign: one file without scripts, made of the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

STYLE: Final = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --line: #8884; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.verdict { border-left: 6px solid var(--good); padding: .6rem 1rem; background: var(--soft); }
.verdict.red { border-color: var(--bad); } .red b, td.bad { color: var(--bad); } .green b { color: var(--good); }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem; min-width: 6.5rem; }
.tile b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; } .tile span { opacity: .75; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; } code { font-size: .92em; } .note { opacity: .75; }
"""
NAMES: Final = {
    "operations": "submissions, repeated ones too",
    "acknowledged": "tasks acknowledged",
    "finished": "tasks finished",
    "lost": "tasks lost",
    "doubled": "tasks doubled",
    "runs": "runs of tasks",
    "attacks_succeeded": "attacks succeeded",
    "attacks_not_judged": "attacks not judged",
    "check_results": "check results",
    "results_lost": "check results lost",
    "results_doubled": "check results doubled",
    "seeds_broken": "seeds broken",
}
MUST_BE_ZERO: Final = frozenset(
    {"lost", "doubled", "results_lost", "results_doubled", "attacks_succeeded", "attacks_not_judged", "seeds_broken"}
)


def html_page(document: dict[str, Any]) -> str:
    """The whole page."""
    given = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    when = f"{document['began']}, {document['seconds'] / 60:.1f} minutes, seed {document['seed']}; {given}"
    parts = [
        f"<h1>Evidence</h1><p class=note>{escape(when)}</p>",
        verdict(document["violations"]),
        tiles(document["totals"]),
        section("Faults", fault_table(document["faults"]), fault_note(document)),
        section("Attacks", attack_table(document["attacks"]), attack_note(document)),
        section("Simulation", seed_table(document["simulation"]), SEED_NOTE),
    ]
    meta = "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
    head = f"{meta}<title>Evidence</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


FAULT_NOTE: Final = (
    "Seconds until the network had recovered, as far as there are enough values. Broker, disk, log and database: from "
    "the restart, or from when it went on, to the next acknowledgement. Broker of a group: from the fault to the next "
    "acknowledgement. Clock: from the jump. Worker: from the fault until every task that it ran has begun elsewhere; "
    "empty if it ran none. Helen and agent: from when they are ready again until a new result is stored."
)
SEED_NOTE: Final = "Whole networks in virtual time under seeded faults; each seed can be replayed."


def fault_note(document: dict[str, Any]) -> str:
    untried = sorted({*document["faults_known"]} - {one["kind"] for one in document["faults"]})
    names = ", ".join(name.replace("_", " ") for name in untried)
    return f"{FAULT_NOTE} Not tried: {names or 'none'}."


def attack_note(document: dict[str, Any]) -> str:
    tried = len({one["name"] for one in document["attacks"]})
    of = f"{tried} of {document['attacks_known']} different attacks, each with its last answer."
    return f"{of} Latency: an honest client's p99 before and during the attack."


def verdict(violations: Sequence[dict[str, Any]]) -> str:
    if not violations:
        return (
            "<div class='verdict green'><b>Kept.</b> Nothing acknowledged was lost or doubled, no attack succeeded, "
            "no process aborted, every recovery was in time, and no seed broke.</div>"
        )
    broken = sum(one["judged"] for one in violations)
    rows = "".join(
        f"<li><code>{escape(one['promise'])}</code> {'' if one['judged'] else 'not judged: '}{escape(one['what'])}</li>"
        for one in violations
    )
    counts = f"Broken: {broken}. Not judged: {len(violations) - broken}."
    return f"<div class='verdict red'><b>{counts}</b><ul>{rows}</ul></div>"


def tiles(totals: dict[str, int]) -> str:
    made = []
    for name, value in totals.items():
        bad = " style='color:var(--bad)'" if name in MUST_BE_ZERO and value else ""
        made.append(f"<div class=tile><b{bad}>{value:,}</b><span>{escape(NAMES.get(name, name))}</span></div>")
    return f"<div class=tiles>{''.join(made)}</div>"


def section(title: str, body: str, note: str) -> str:
    return f"<h2>{escape(title)}</h2><p class=note>{escape(note)}</p><div class=scroll>{body}</div>"


def table(heads: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]], numbers: int) -> str:
    """Rows of (class, text); the last `numbers` columns are numbers."""
    first = len(heads) - numbers
    head = "".join(f"<th{' class=number' if at >= first else ''}>{escape(name)}</th>" for at, name in enumerate(heads))
    lines = []
    for row in rows:
        cells = [f"<td class='{kind}'>{escape(text)}</td>" for kind, text in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def fault_table(rows: Sequence[dict[str, Any]]) -> str:
    heads = ("fault", "count", "p50", "p90", "p99", "max", "bound")
    columns = ("p50", "p90", "p99", "max", "bound")
    body = [
        [("", row["kind"].replace("_", " ")), ("number", str(row["count"]))]
        + [("number", seconds(row[name])) for name in columns]
        for row in rows
    ]
    return table(heads, body, 6)


def badness(one: dict[str, Any]) -> int:
    """2: it succeeded, 1: it was not judged, 0: it failed."""
    return 2 if one["succeeded"] else int(bool(one["unjudged"]))


def attack_table(attacks: Sequence[dict[str, Any]]) -> str:
    """One row for each attack, with how often it was tried; one that succeeded or was not judged shows that answer."""
    last: dict[str, dict[str, Any]] = {}
    tried: dict[str, int] = {}
    for one in attacks:
        tried[one["name"]] = tried.get(one["name"], 0) + 1
        if one["name"] not in last or badness(one) >= badness(last[one["name"]]):
            last[one["name"]] = one
    body = []
    for name, one in sorted(last.items(), key=lambda item: (-badness(item[1]), item[1]["keys"], item[0])):
        latency = one["latency"] and " / ".join(f"{value * 1000:.0f} ms" for value in one["latency"])
        said = ("", one["answer"]), ("bad", f"not judged: {one['unjudged']}"), ("bad", f"SUCCEEDED: {one['succeeded']}")
        answer = said[badness(one)]
        with_keys = "yes" if one["keys"] == "keys" else "no"
        row = [("", name.replace("_", " ")), ("", one["promise"]), ("", with_keys), answer]
        body.append([*row, ("number", latency or ""), ("number", str(tried[name]))])
    return table(("attack", "promise", "keys", "answer", "latency", "tried"), body, 2)


def seed_table(rows: Sequence[dict[str, Any]]) -> str:
    body = [
        [
            ("", row["kind"]),
            ("bad" if row["broken"] else "", "; ".join(row["broken"]) or "none"),
            ("number", f"{row['first']} to {row['last']}"),
            ("number", str(row["tried"])),
        ]
        for row in rows
    ]
    return table(("kind", "violations", "seeds", "tried"), body, 2)
