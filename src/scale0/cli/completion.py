"""`scale0 completion`: the completion script for a shell."""

from __future__ import annotations

import click

from scale0.cli.common import output

VARIABLE = "_SCALE0_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the shell completion script of SHELL.

    \b
    Examples:
      scale0 completion bash >> ~/.bashrc
      scale0 completion zsh >> ~/.zshrc
      scale0 completion fish > ~/.config/fish/completions/scale0.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"no completion for {shell}")
    output.say(script(context.find_root().command, {}, "scale0", VARIABLE).source())
