"""The content of a secret is removed from findings, however a check has cut or escaped it."""

from __future__ import annotations

import html
import json
from urllib.parse import quote, quote_plus

import pytest

from scale0.history.events.columns import EventMetric
from scale0.monitoring.agent.core.hidden_secrets import PIECE_CHARS, HiddenSecrets
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, MAX_METRIC_NAME_CHARS, OK, CheckFinding

SHOWN = "secret:pw"
HARD = "a/b\"c\\d'e<f>g&h%i é+j"


def hidden(content: str, text: str) -> str:
    return HiddenSecrets({content: SHOWN}).in_message(text)


def metric_of(content: str, name: str, unit: str | None = None) -> EventMetric:
    finding = CheckFinding(OK, "", (EventMetric(name, 1.0, unit),))
    return HiddenSecrets({content: SHOWN}).in_finding(finding, True).metrics[0]


# Promise: CHECK-19
@pytest.mark.parametrize(
    "form",
    [
        HARD,
        repr(HARD)[1:-1],
        repr(HARD.encode())[2:-1],
        json.dumps(HARD)[1:-1],
        json.dumps(HARD, ensure_ascii=False)[1:-1],
        json.dumps(HARD).replace("/", "\\/")[1:-1],
        quote(HARD),
        quote(HARD, safe="").lower(),
        quote_plus(HARD),
        html.escape(HARD),
        html.escape(HARD, quote=False),
        HARD.upper(),
    ],
)
def test_each_form_of_a_secret_is_hidden(form: str):
    assert hidden(HARD, f"no login with [{form}]!") == f"no login with [{SHOWN}]!"


# Promise: CHECK-19
@pytest.mark.parametrize("content", [r"back\slash", r"it's \0 'quoted'"])
def test_a_secret_printed_with_repr_is_hidden(content: str):
    assert hidden(content, f"bad argument {content!r}")[:-1] == f"bad argument {repr(content)[0]}{SHOWN}"
    assert SHOWN in hidden(content, f"bad arguments {[content, 'x', content]!r}")
    assert content[-4:] not in hidden(content, f"bad arguments {[content, 'x', content]!r}")


# Promise: CHECK-19
def test_a_secret_that_a_text_cuts_is_hidden():
    content = "".join(f"{number:03}-" for number in range(10))
    for size in range(4, len(content)):
        for text in (f"login {content[:size]}", f"{content[:size]}… is down", f"{content[-size:]} is down"):
            shown = hidden(content, text)
            assert SHOWN in shown
            assert not any(digit in shown for digit in "0123456789")
    middle = hidden(content, f"used:{content[:60]}…{content[-60:]}")
    assert middle == f"used:{SHOWN}…{SHOWN}"


# Promise: CHECK-19
@pytest.mark.parametrize("size", [1, 4, 7, 8, 30])
def test_a_message_that_is_cut_in_the_middle_of_a_secret_shows_no_part_of_it(size: int):
    content = "hunter2-correct-horse-battery-staple"
    message = "x" * (MAX_MESSAGE_CHARS - size) + content[:size]
    for text in (message, message + " (some process that it started could not be killed)"):
        shown = hidden(content, text)
        assert len(shown) <= MAX_MESSAGE_CHARS
        assert content[: min(size, 4)] not in shown or size < 4


# Promise: CHECK-19
def test_parts_of_a_url_are_hidden_and_a_scheme_alone_is_not():
    url = "https://db1:8443/x?key=T0ken&a=b"
    assert (
        hidden(url, "db1:8443: refused, see https://other.example") == "secret:pw: refused, see https://other.example"
    )
    assert hidden(url, "HTTPS://db1:8443/x answers 200") == f"{SHOWN} answers 200"
    assert hidden("hunter2secret://x", "no hunter2secret") == f"no {SHOWN}"
    assert hidden(url, "bad key 'T0ken'") == f"bad key '{SHOWN}'"
    assert hidden("https://x/" + "y" * 400, "https://x/" + "y" * 190 + "… answers 200") == f"{SHOWN}… answers 200"


# Promise: CHECK-19
def test_names_and_units_of_metrics_show_no_secret():
    content = "correct horse-battery|staple"
    for name in (
        "user correct horse-battery|staple",
        "correct",
        "HORSE-BATTERY",
        "staple",
        "user corre",
        "x" * 110 + content[:18],
    ):
        metric = metric_of(content, name)
        assert SHOWN in metric.name
        assert 0 < len(metric.name) <= MAX_METRIC_NAME_CHARS
        assert "orse-b" not in metric.name
    assert [metric_of(content, "time", unit).unit for unit in ("ms", "rect", "staple", "x-correct hor", None)] == [
        "ms",
        None,
        None,
        None,
        None,
    ]
    assert metric_of(content, "time", "ms").name == "time"


# Promise: CHECK-19
def test_several_secrets_are_hidden_and_a_reference_is_not():
    both = HiddenSecrets({"hunter2": "secret:a", "secret:a-long-one": "secret:long"})
    assert both.in_message("1 hunter2 2 secret:a-long-one 3") == "1 secret:a 2 secret:long 3"


# Promise: CHECK-19
@pytest.mark.parametrize("content", ["a", "ab", "abc", "hunter2"])
def test_a_short_secret_is_hidden_everywhere(content: str):
    assert content not in hidden(content, f"x{content}x {content.upper()}, {content * 3}").replace(SHOWN, "")


def test_text_without_a_secret_stays():
    text = "OK - 3 of 4 https://example.org/ …hunt, é\nand more"
    assert hidden("correct-horse-battery", text) == text
    assert PIECE_CHARS > 4
