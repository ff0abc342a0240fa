"""Tokens on the command line: read from stdin or a file, with a warning otherwise, and sent only to a proven broker.

Promise: TERM-10
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from scale0.cli.common.authentication import PASSWORD, TOKEN, AdminAccess
from scale0.cli.common.errors import CommandError
from scale0.cli.common.joining import JOIN_TOKEN, secret_option, token_option
from scale0.cli.keys.keys import JOINS, command_of
from scale0.cli.main import cli
from scale0.errors import Unreachable
from scale0.transport.edge.curve_certificates import CurveCertificate, new_certificate, write_pair
from tests.fakes.ports import free_port

FAR = "tcp://198.51.100.7:5700"
WARNING = "warning: other users can see a token on the command line"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys."""
    for name in ("SCALE0_KEY", "SCALE0_SERVER_KEY", "SCALE0_DATA_DIR", TOKEN, JOIN_TOKEN, PASSWORD):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@click.command()
@token_option
def shown(token_text: str | None) -> None:
    click.echo(token_text)


@pytest.mark.parametrize("way", ["argument", "stdin", "file", "environment"])
def test_a_token_comes_from_stdin_a_file_or_the_environment_without_a_warning(home, way):
    (home / "token").write_text("s0join.x\n")
    words = {"argument": ["--token", "s0join.x"], "stdin": ["--token", "-"], "file": ["--token", f"@{home}/token"]}
    env = {JOIN_TOKEN: "s0join.x"} if way == "environment" else {}
    result = CliRunner().invoke(shown, words.get(way, []), input="s0join.x\n", env=env)
    assert (result.exit_code, result.stdout) == (0, "s0join.x\n")
    assert (WARNING in result.stderr) is (way == "argument")
    assert "s0join" not in result.stderr


@pytest.mark.parametrize("words", [("status",), ("reload",), ("config", "history"), ("task", "list")])
def test_a_management_token_is_refused_on_the_command_line_and_not_repeated(words):
    refused = CliRunner().invoke(cli, [*words, "--token", "s0_secret"])
    assert refused.exit_code == 2
    assert "others can see: give --token - (stdin) or --token @FILE, or set SCALE0_TOKEN" in refused.output
    assert "s0_secret" not in refused.output


@pytest.mark.parametrize(("role", "name"), list(JOINS))
def test_no_command_that_is_printed_has_a_token_among_its_arguments(role, name):
    command = command_of(role, "web-1" if name else "", "10.0.0.1:5700", "s0join.x")
    assignment, program, *arguments = command.split()
    assert (assignment, program) == ("SCALE0_JOIN_TOKEN=s0join.x", "scale0")
    assert not any("s0join" in word for word in arguments)


def test_a_file_that_is_not_there_is_an_error():
    assert "cannot read nowhere" in CliRunner().invoke(shown, ["--token", "@nowhere"]).stderr


def options(command: click.Command) -> list[Any]:
    found = [one for one in command.params if "--token" in one.opts]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            found += options(child) if child is not None else []
    return found


def test_every_option_for_a_token_takes_stdin_and_a_file():
    callback = secret_option.__qualname__ + ".<locals>.read"
    found = options(cli)
    assert len(found) > 20
    assert {one.callback.__qualname__ for one in found} == {callback}


@pytest.mark.parametrize("access", [{"token": "s0_x"}, {"auth_id": "anna"}, {"data_dir": "."}])
def test_no_token_and_no_password_is_sent_to_a_broker_that_cannot_prove_itself(home, monkeypatch, access):
    monkeypatch.setenv(PASSWORD, "secret")
    (home / "token").write_text("s0_x")
    with pytest.raises(CommandError, match=r"no key is known for tcp://198.51.100.7:5700"):
        AdminAccess(FAR, **access).find()
    with pytest.raises(Unreachable, match="cannot be reached"):
        AdminAccess(f"tcp://127.0.0.1:{free_port()}", **access).find()


@pytest.mark.parametrize("access", [{"token": "s0_x"}, {"auth_id": "anna"}, {"data_dir": "."}])
def test_a_token_is_sent_without_keys_to_a_process_of_this_user_on_this_machine(home, monkeypatch, access):
    monkeypatch.setenv(PASSWORD, "secret")
    (home / "token").write_text("s0_x")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert AdminAccess(f"tcp://127.0.0.1:{listener.getsockname()[1]}", **access).find()


def test_without_keys_no_token_is_sent_to_another_machine_even_if_asked_for(home, monkeypatch):
    monkeypatch.setenv("SCALE0_KEY", "none")
    with pytest.raises(CommandError, match="no key is known"):
        AdminAccess(FAR, token="s0_x").find()


def test_a_token_is_sent_to_a_broker_whose_key_is_known(home):
    pair = new_certificate()
    metadata = {"name": "me", "role": "frontend", "endpoint": FAR, "server-key": new_certificate().public}
    folder = home / "scale0" / "keys"
    folder.mkdir(parents=True, mode=0o700)
    certificate = CurveCertificate(public=pair.public, secret=pair.secret, metadata=metadata)
    write_pair(folder / "far.key_secret", certificate)
    assert AdminAccess(FAR, token="s0_x").find() == {"auth_token": "s0_x"}
    with pytest.raises(CommandError):
        AdminAccess("tcp://198.51.100.8:5700", token="s0_x").find()


# Promise: CURVE-26
def test_a_command_without_keys_refuses_another_machine_unless_it_is_told_to(home):
    refused = CliRunner().invoke(cli, ["services", "--join", FAR])
    assert "no key is known for tcp://198.51.100.7:5700" in refused.output
    assert refused.exit_code
    assert "scale0 token frontend" in refused.output
