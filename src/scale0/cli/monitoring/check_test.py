"""`scale0 check test`: run a check on this machine, without a network.

Lives here: words to args, and who runs what. Never here: a measurement. Exit codes: 0 ok; 1 any other state. Invariant:
with an agent's file a name means what it means to the agent; its folder is not touched, and no agent need run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from scale0.cli.common import errors, output
from scale0.cli.common.watch_mode import json_option
from scale0.cli.monitoring import check_output
from scale0.cli.network.call import SECONDS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from scale0.config import AgentConfig
    from scale0.monitoring.protocol.results import CheckFinding

BUILT_IN: Final = "built-in"
BETWEEN_SECONDS: Final = 1.0
"""A check that compares runs twice, so far apart: what it says first is about the time since boot."""


class AvailableCheck(NamedTuple):
    """A check that can be run here."""

    kind: str
    about: str


def names_of_checks(_context: click.Context, _argument: click.Parameter, start: str) -> list[CompletionItem]:
    """For a shell's completion."""
    from click.shell_completion import CompletionItem

    from scale0.monitoring.checks import registry

    known = registry.BUILT_IN.values()
    return [CompletionItem(one.name, help=one.about) for one in known if one.name.startswith(start)]


@click.command("test")
@click.argument("name", required=False, shell_complete=names_of_checks)
@click.option("--arg", "words", multiple=True, metavar="KEY=VALUE", help="An arg of the check; a list by repeating it.")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, help="What the check may take (10).")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="An agent's file: its plugins and Lua files, too."
)
@json_option
def test(name: str | None, words: tuple[str, ...], timeout: float, config_file: Path | None, wants_json: bool) -> None:
    """Run the check NAME on this machine, and show what it finds; without NAME, which there are.

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

    config = None if config_file is None else read(config_file)
    known = known_checks(config)
    if name is None:
        show_names(known, wants_json)
        return
    if name not in known:
        raise unknown(name, known, config is not None)
    if known[name].kind == BUILT_IN:
        finding = found(name, args_of_words(name, words), timeout)
    else:
        finding = found_elsewhere(config, name, free_args(words), timeout)
    if wants_json:
        output.say(output.as_json({"check": name, **result_object(finding)}))
    else:
        check_output.show(result_object(finding))
    if finding.state != OK:
        sys.exit(errors.NO)


def read(file: Path) -> AgentConfig:
    """An agent's file."""
    from scale0.config import AgentConfig
    from scale0.config.edge.files import read_config

    return read_config(file, AgentConfig)


def known_checks(config: AgentConfig | None) -> dict[str, AvailableCheck]:
    """What can be run here. Raises ConfigError if two checks want the same name, as the agent does."""
    from scale0.monitoring.checks import registry

    known = {one.name: AvailableCheck(BUILT_IN, one.about) for one in registry.BUILT_IN.values()}
    if config is not None:
        from scale0.monitoring.agent.edge.check_registry import CheckRegistry
        from scale0.monitoring.agent.edge.process import check_processes

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
    """There is no such check."""
    import difflib

    steps = [f"is it {near}?" for near in difflib.get_close_matches(name, known, 1)]
    steps.append("`scale0 check test` without a name lists all")
    if not with_file:
        steps.append("--config FILE adds an agent's plugins and Lua files")
    kind = "check" if with_file else "built-in check"
    return errors.CommandError(f"there is no {kind} {name}", "; ".join(steps), errors.USAGE)


def found_elsewhere(config: AgentConfig | None, name: str, args: bytes, timeout: float) -> CheckFinding:
    """What a plugin or a Lua file finds, run as the agent runs it."""
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
        raise ValueError("only an agent's file has plugins and Lua files")
    return asyncio.run(once(config))


def found(name: str, args: bytes, timeout: float) -> CheckFinding:
    """What the check finds; twice, where it compares."""
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
    """The args as JSON. Words are text: the check's own types say what each one is."""
    import msgspec

    from scale0.monitoring.checks.registry import args_of

    given = by_key(words)
    known = args_of(name)
    lists = {field.name for field in msgspec.structs.fields(known) if is_list(field.type)}
    args = {key: values_of(key, values, key in lists) for key, values in given.items()}
    try:
        return msgspec.json.encode(msgspec.convert(args, known, strict=False))
    except msgspec.ValidationError:
        return msgspec.json.encode(args)  # the check itself says what is wrong with it


def by_key(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each key, as they were typed."""
    given: dict[str, list[str]] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise click.UsageError(f"{word!r} is not KEY=VALUE")
        given.setdefault(key, []).append(value)
    return given


def free_args(words: Sequence[str]) -> bytes:
    """Args of a check that has no types of its own: JSON or else text; a list by repeating."""
    import msgspec

    from scale0.cli.network.call import parsed

    values = {key: [parsed(value) for value in values] for key, values in by_key(words).items()}
    return msgspec.json.encode({key: found[0] if len(found) == 1 else found for key, found in values.items()})


def is_list(type_: Any) -> bool:
    """True for an arg that is nothing but a list."""
    import typing

    import msgspec

    base = typing.get_args(type_)[0] if typing.get_origin(type_) is typing.Annotated else type_
    return isinstance(msgspec.inspect.type_info(base), msgspec.inspect.VarTupleType)


def values_of(key: str, values: list[str], is_list: bool) -> Any:
    """One value, or several; a JSON list or object where it looks like one."""
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
    """All checks that can be run here."""
    if wants_json:
        output.say(output.as_json([{"name": name, **one._asdict()} for name, one in known.items()]))
    elif {one.kind for one in known.values()} == {BUILT_IN}:
        output.table(("CHECK", "ABOUT"), [(name, one.about) for name, one in known.items()])
    else:
        output.table(("CHECK", "KIND", "ABOUT"), [(name, one.kind, one.about or "-") for name, one in known.items()])
