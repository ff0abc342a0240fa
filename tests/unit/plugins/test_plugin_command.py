"""A check's arguments become words of a plugin's command: the number of words is fixed, and none becomes an option."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.errors import ConfigError, Refusal
from scale0.monitoring.agent.core.plugin_command import PluginCommand

LOAD = PluginCommand("load", ["/bin/check_load", "-w", "{w}", "--crit={c=9,8,7}", "{x=}literal{ }"])


# Promise: CHECK-3
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"w": "5,4,3"}, ["-w", "5,4,3", "--crit=9,8,7", "literal{ }"]),
        ({"w": 5, "c": 1.5}, ["-w", "5", "--crit=1.5", "literal{ }"]),
        ({"w": -5}, ["-w", "-5", "--crit=9,8,7", "literal{ }"]),
        ({"w": "-5.25"}, ["-w", "-5.25", "--crit=9,8,7", "literal{ }"]),
        ({"w": "a b; rm -rf / $(x) `y`"}, ["-w", "a b; rm -rf / $(x) `y`", "--crit=9,8,7", "literal{ }"]),
        ({"w": "{c}", "c": "--x"}, ["-w", "{c}", "--crit=--x", "literal{ }"]),
        ({"w": ""}, ["-w", "", "--crit=9,8,7", "literal{ }"]),
    ],
)
def test_arguments_fill_their_places_each_as_one_word(args, words):
    assert LOAD.fill(json.dumps(args).encode()) == ["/bin/check_load", *words]


# Promise: CHECK-3
@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (b"", "argument w is missing"),
        (b'{"w":"--option"}', "would be read as an option"),
        (b'{"w":"1","x":"-o"}', "would be read as an option"),
        (b'{"w":' + b"9" * 400 + b"}", "argument w is out of range"),
        (b'{"w":"1","other":2}', "unknown argument 'other' (the plugin takes: c, w, x)"),
        (b'{"w":["a"]}', "neither text nor a number"),
        (b'{"w":true}', "neither text nor a number"),
        (b'{"w":null}', "neither text nor a number"),
        (b'{"w":"a\\u0000b"}', "not printable"),
        (b'{"w":"a\\nb"}', "not printable"),
        (b'{"w":"' + b"x" * 1_025 + b'"}', "longer than 1024"),
        (b"[1]", "not a JSON object"),
        (b"nonsense", "not valid JSON"),
        (b'{"w":"\xff"}', "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b'{"w":"' + b"x" * 70_000 + b'"}', "more than 65536"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, reason):
    with pytest.raises(Refusal) as refused:
        LOAD.fill(args)
    assert reason in refused.value.message


# Promise: CHECK-3
def test_a_command_without_places_takes_no_arguments():
    plain = PluginCommand("p", ["/bin/true", "-x"])
    assert plain.fill(b"") == plain.fill(b"{}") == plain.fill(b" { } ") == ["/bin/true", "-x"]
    with pytest.raises(Refusal, match="the plugin takes: none"):
        plain.fill(b'{"args": ["-y"]}')


# Promise: CHECK-3
@pytest.mark.parametrize("words", [[], [""], ["{program}"], ["/bin/{x=ls}"]])
def test_the_program_is_the_file_s_own_business(words):
    with pytest.raises(ConfigError):
        PluginCommand("p", words)


# Promise: CHECK-3
@given(st.dictionaries(st.sampled_from(["w", "c", "x"]), st.text(max_size=30) | st.floats() | st.integers()))
def test_whatever_is_given_the_words_stay_as_many(args):
    try:
        words = LOAD.fill(json.dumps(args).encode())
    except Refusal:
        return
    assert len(words) == 5
    assert words[:2] == ["/bin/check_load", "-w"]
    assert not any("\0" in word for word in words)


# Promise: CHECK-3
def test_an_argument_behind_an_empty_one_begins_the_word_and_is_no_option_either():
    pair = PluginCommand("pair", ["/bin/check", "{a}{b=-d}"])
    with pytest.raises(Refusal, match="would be read as an option"):
        pair.fill(b'{"a":"","b":"--exec=x"}')
    assert pair.fill(b'{"a":""}')[1] == "-d"  # the file's own word
    assert pair.fill(b'{"a":"x","b":"-y"}')[1] == "x-y"
    assert pair.fill(b'{"a":-5,"b":":10"}')[1] == "-5:10"
