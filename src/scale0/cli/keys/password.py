"""`scale0 password`: a hash for a broker's `admins`."""

from __future__ import annotations

import sys

import click

from scale0.cli.common import errors, output


@click.command()
def password() -> None:
    """Ask for a password, and print its argon2id hash for `admins` in a broker's file.

    Without a terminal, the first line of stdin is the password.

    \b
    Example:
      scale0 password < secret.txt

    \b
    What its output is for, in ZPL:
      admins
          auth_id = root
          password_hash = '$argon2id$...'
          role = admin
    """
    import argon2

    if sys.stdin.isatty():
        secret = click.prompt("password", hide_input=True, confirmation_prompt="again", err=True)
    else:
        secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise errors.CommandError("an empty password protects nothing", "type one, or pipe one in", errors.USAGE)
    output.say(argon2.PasswordHasher().hash(secret))
