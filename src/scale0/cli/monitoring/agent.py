"""`scale0 agent`: what runs on a watched machine.

Lives here: a look at the file, and the change into stage0; the commands beside it are in `agent_enrol` and
`agent_forget`. Never here: how an agent works. Invariant: what stays in memory is stage0 and the agent, nothing of the
command line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from scale0.cli.common.log_format import log_format
from scale0.cli.monitoring.agent_enrol import enrol, renew, revoke
from scale0.cli.monitoring.agent_forget import forget


@click.group(invoke_without_command=True)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Its file: .json, .xml or .zpl.")
@log_format
@click.pass_context
def agent(context: click.Context, config_file: Path | None) -> None:
    """Run an agent until SIGTERM or Ctrl-C: it runs checks, and tells Helen what they found.

    It prints one line that starts with `ready` when it works, and logs to stderr. It works without Helen: results wait
    on disk until she is there. SIGHUP gives it a fresh process, which reads its file again.

    \b
    Examples:
      scale0 agent enrol helen.example.com --token TOKEN
      scale0 agent --config agent/agent.zpl
    """
    if context.invoked_subcommand is not None:
        if config_file is not None:
            raise click.UsageError(f"--config belongs to `scale0 agent` alone, not to {context.invoked_subcommand}")
        return
    if config_file is None:
        raise click.UsageError("--config FILE is needed; `scale0 agent enrol` makes one")
    from scale0.config import AgentConfig
    from scale0.config.edge.files import read_config
    from scale0.monitoring.agent.edge import stage0

    read_config(config_file, AgentConfig)  # what is wrong with it is better said before anything is started
    sys.stdout.flush()
    # As a file, so that nothing of the package is imported; -P: the folder beside it is no place for modules.
    os.execv(sys.executable, [sys.executable, "-P", stage0.__file__, str(config_file)])


for command in (enrol, renew, revoke, forget):
    agent.add_command(command)
