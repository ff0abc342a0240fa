"""`scale0 check test`: run a check on this machine without a network; and the output of a result.

With an agent's file, a name means the same as for the agent. Its folder is not changed, and no agent needs to run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from scale0.cli.common import errors, output
from scale0.cli.common.options import json_option
from scale0.cli.network.call import SECONDS, parsed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from scale0.config import AgentConfig
    from scale0.monitoring.protocol.results import CheckFinding

COLOURS: Final = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "magenta"}
NUMBERS: Final = ("value", "warn", "crit", "min", "max")
KEYS: Final = ("value", "unit", "warn", "crit", "min", "max")
EXACT_BELOW: Final = 1e15
"""Integers below this are shown with all digits."""
BUILT_IN: Final = "built-in"
BETWEEN_SECONDS: Final = 1.0
"""A check that computes rates runs twice: its first result is for the time since boot."""


class AvailableCheck(NamedTuple):
    kind: str
    about: str


def names_of_checks(_context: click.Context, _argument: click.Parameter, start: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from scale0.monitoring.checks import registry

    known = registry.BUILT_IN.values()
    return [CompletionItem(one.name, help=one.about) for one in known if one.name.startswith(start)]


@click.command("test")
@click.argument("name", required=False, shell_complete=names_of_checks)
@click.option(
    "--arg", "words", multiple=True, metavar="KEY=VALUE", help="An argument of the check; repeat it for a list."
)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, help="How long the check may take (10).")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="An agent's file, for its plugins and Lua files."
)
@json_option
def test(name: str | None, words: tuple[str, ...], timeout: float, config_file: Path | None, wants_json: bool) -> None:
    """Run the check NAME on this machine, and show its result; without NAME, list the checks.

    Exits with 0 if its state is ok, with 1 otherwise.

    \b
    With --json, an object: check, state, message, metrics [name, value, unit, warn, crit, min, max], started, seconds
    Without NAME, a list: name, kind, about

    \b
    Examples:
      scale0 check test disk
      scale0 check test http --arg url=https://127.0.0.1:8443/ --arg verify=false
      scale0 check test process --arg name=nginx --arg crit=2:8
      scale0 check test log --arg path=/var/log/syslog --arg match=error --arg from_start=true
      scale0 check test my-plugin --config agent/agent.zpl
    """
    from scale0.monitoring.protocol.results import OK, result_object

    config = None if config_file is None else read_agent_config(config_file)
    known = known_checks(config)
    if name is None:
        show_names(known, wants_json)
        return
    if name not in known:
        raise unknown(name, known, config is not None)
    if known[name].kind == BUILT_IN:
        finding = run_built_in(name, args_of_words(name, words), timeout)
    else:
        finding = run_external(config, name, free_args(words), timeout)
    if wants_json:
        output.say(output.as_json({"check": name, **result_object(finding)}))
    else:
        show_result(result_object(finding))
    if finding.state != OK:
        sys.exit(errors.NO)


def read_agent_config(file: Path) -> AgentConfig:
    from scale0.config import AgentConfig
    from scale0.config.edge.files import read_config

    return read_config(file, AgentConfig)


def known_checks(config: AgentConfig | None) -> dict[str, AvailableCheck]:
    """The checks that can run here. Raises ConfigError if two have the same name, as the agent does."""
    from scale0.monitoring.checks import registry

    known = {one.name: AvailableCheck(BUILT_IN, one.about) for one in registry.BUILT_IN.values()}
    if config is not None:
        from scale0.monitoring.agent.edge.process import check_processes
        from scale0.monitoring.agent.edge.running_checks import CheckRegistry

        plugins, lua = check_processes(config)
        try:
            CheckRegistry(plugins, registry.BUILT_IN, lua)
            known |= {name: AvailableCheck("plugin", "") for name in plugins.names}
            known |= {name: AvailableCheck("Lua", "") for name in lua.names}
        finally:
            plugins.close()
            lua.close()
    return known


def unknown(name: str, known: Mapping[str, AvailableCheck], with_file: bool) -> errors.CommandError:
    import difflib

    steps = [f"did you mean {near}?" for near in difflib.get_close_matches(name, known, 1)]
    steps.append("`scale0 check test` without a name lists all checks")
    if not with_file:
        steps.append("--config FILE adds an agent's plugins and Lua files")
    kind = "check" if with_file else "built-in check"
    return errors.CommandError(f"there is no {kind} {name}", "; ".join(steps), errors.USAGE)


def run_external(config: AgentConfig | None, name: str, args: bytes, timeout: float) -> CheckFinding:
    """The result of a plugin or a Lua file, run as the agent runs it."""
    import asyncio

    from scale0.monitoring.agent.edge.process import check_processes

    async def once(config: AgentConfig) -> CheckFinding:
        plugins, lua = check_processes(config)
        chosen = plugins if name in plugins.names else lua
        try:
            return await chosen.run(name, args, timeout)
        finally:
            plugins.close()
            lua.close()

    if config is None:
        raise ValueError("plugins and Lua files need an agent's file")
    return asyncio.run(once(config))


def run_built_in(name: str, args: bytes, timeout: float) -> CheckFinding:
    """The result of a built-in check, which runs twice if it computes rates."""
    import time

    from scale0.monitoring.checks import registry
    from scale0.monitoring.protocol.results import UNKNOWN

    check = registry.BUILT_IN[name]
    finding = check.run(args, timeout)
    if check.compares and finding.state != UNKNOWN:
        time.sleep(BETWEEN_SECONDS)
        finding = check.run(args, timeout)
    return finding


def args_of_words(name: str, words: Sequence[str]) -> bytes:
    """The arguments as JSON; the types of the check decide how each word is read."""
    import msgspec

    from scale0.monitoring.checks.registry import args_of

    given = by_key(words)
    known = args_of(name)
    lists = {field.name for field in msgspec.structs.fields(known) if is_list(field.type)}
    args = {key: values_of(key, values, key in lists) for key, values in given.items()}
    try:
        return msgspec.json.encode(msgspec.convert(args, known, strict=False))
    except msgspec.ValidationError:
        return msgspec.json.encode(args)  # the check itself reports the error


def by_key(words: Sequence[str]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise click.UsageError(f"{word!r} is not KEY=VALUE")
        given.setdefault(key, []).append(value)
    return given


def free_args(words: Sequence[str]) -> bytes:
    """Arguments of a check without types: JSON or else text; a repeated key is a list."""
    import msgspec

    values = {key: [parsed(value) for value in values] for key, values in by_key(words).items()}
    return msgspec.json.encode({key: found[0] if len(found) == 1 else found for key, found in values.items()})


def is_list(type_: Any) -> bool:
    import typing

    import msgspec

    base = typing.get_args(type_)[0] if typing.get_origin(type_) is typing.Annotated else type_
    return isinstance(msgspec.inspect.type_info(base), msgspec.inspect.VarTupleType)


def values_of(key: str, values: list[str], is_list: bool) -> Any:
    """One value or several; JSON if it looks like a list or an object."""
    import msgspec

    if len(values) == 1 and values[0][:1] in ("[", "{"):
        try:
            return msgspec.json.decode(values[0])
        except msgspec.DecodeError:
            pass  # a pattern such as [ab]* is text
    if is_list:
        return values
    if len(values) > 1:
        raise click.UsageError(f"{key} is given twice")
    return None if values[0] == "null" else values[0]


def show_names(known: Mapping[str, AvailableCheck], wants_json: bool) -> None:
    if wants_json:
        output.say(output.as_json([{"name": name, **one._asdict()} for name, one in known.items()]))
    elif {one.kind for one in known.values()} == {BUILT_IN}:
        output.table(("CHECK", "ABOUT"), [(name, one.about) for name, one in known.items()])
    else:
        output.table(("CHECK", "KIND", "ABOUT"), [(name, one.kind, one.about or "-") for name, one in known.items()])


def show_result(found: Mapping[str, Any]) -> None:
    """State and message on one line, the metrics below; empty columns are left out."""
    state, seconds = found["state"], found.get("seconds")
    took = "" if seconds is None else f"  ({seconds:.3f} s)"
    output.say(f"{output.painted(state, COLOURS.get(state, 'white'))}: {output.clean(found['message'])}{took}")
    if found["metrics"]:
        keys = [key for key in KEYS if any(row.get(key) not in (None, "") for row in found["metrics"])]
        rows = [(row["name"], *(cell(row.get(key)) for key in keys)) for row in found["metrics"]]
        output.say()
        heads = ("METRIC", *(key.upper() for key in keys))
        output.table(heads, rows, numbers=[key.upper() for key in NUMBERS])


def cell(value: Any) -> str:
    """A number without needless digits; a dash for nothing."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_BELOW else f"{value:.6g}"
    return str(value)
