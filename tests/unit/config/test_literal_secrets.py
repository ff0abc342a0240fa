"""Literal secrets of the network document are accepted with a warning, which names the key and never the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from scale0.cli.main import cli
from scale0.cli.network.doctor import document_warnings
from scale0.config import CheckDefinition, NetworkDocument, NotificationHandler
from scale0.config.literal_secrets import literal_secrets
from tests.fakes.broker import FakeBroker

SLACK = "https://hooks.slack.com/services/T0001/B0001/a1B2c3D4e5F6g7H8i9J0k1L2"


def webhook(url: str = "https://hooks.example.com/scale0", **headers: str) -> NetworkDocument:
    return NetworkDocument(handlers=(NotificationHandler(name="chat", type="webhook", url=url, headers=headers),))


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (webhook(SLACK), "handlers.chat.url"),
        (webhook("https://anna:a1b2c3@hooks.example.com/"), "handlers.chat.url"),
        (webhook("https://hooks.example.com/?token=a1b2c3"), "handlers.chat.url"),
        (webhook(Authorization="Bearer a1b2c3"), "handlers.chat.headers.Authorization"),
        (NetworkDocument(checks=(CheckDefinition(name="db", args={"password": "a1b2c3"}),)), "checks.db.args.password"),
        (NetworkDocument(checks=(CheckDefinition(name="db", args={"url": SLACK}),)), "checks.db.args.url"),
    ],
)
def test_a_literal_secret_is_named_with_its_key_and_the_next_step(document: NetworkDocument, key: str) -> None:
    [warning] = literal_secrets(document)
    assert warning.startswith(f"{key} looks like a secret")
    assert "write secret:NAME" in warning
    assert "a1" not in warning


@pytest.mark.parametrize(
    "document",
    [
        webhook(),
        webhook("secret:chat", Authorization="secret:chat-token"),
        webhook(**{"Content-Type": "application/json"}),
        NetworkDocument(checks=(CheckDefinition(name="db", args={"url": "https://example.com/health", "warn": 5}),)),
    ],
)
def test_references_and_plain_values_have_no_warning(document: NetworkDocument) -> None:
    assert literal_secrets(document) == []


def test_the_answer_to_a_change_has_the_warning_and_the_change_is_accepted() -> None:
    broker = FakeBroker()

    def change(**values: Any) -> dict[str, Any]:
        _, said, bodies = broker.manage("patch_config", set=values)
        assert said["code"] == 200
        answer: dict[str, Any] = msgspec.json.decode(bodies[0])
        return answer

    handler = {"type": "webhook", "url": SLACK}
    assert change(**{"handlers.chat": handler})["warnings"][0].startswith("handlers.chat.url ")
    assert "warnings" not in change(**{"handlers.chat.url": "secret:chat"})


def test_config_check_and_doctor_show_it(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    body = {"handlers": [{"name": "chat", "type": "webhook", "url": SLACK}]}
    file.write_text(json.dumps(body))
    done = CliRunner().invoke(cli, ["config", "check", str(file), "--as", "network"])
    assert "warning: handlers.chat.url looks like a secret" in done.output
    assert document_warnings({"config": body}) == tuple(literal_secrets(webhook(SLACK)))
