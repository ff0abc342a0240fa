"""ZPL beside czmq: the same tree wherever both read a document, and a table of where they differ.

The rule: whatever we accept, czmq accepts and reads alike. Where the RFC and czmq differ, or czmq bends a value,
we refuse.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scale0.config import zpl_format
from scale0.config.tree import Item
from scale0.kernel.errors import ConfigError
from tests.unit.config.zconfig import czmq_reader, tree_of

REFUSED = None

ALIKE = [
    ("empty", "", ()),
    ("no line end", "a = 1", (("a", "1", ()),)),
    ("blanks around =", "a\t = \t1 \t\n", (("a", "1", ()),)),
    ("no blanks", "a=1\n", (("a", "1", ()),)),
    ("name alone", "a\n", (("a", "", ()),)),
    ("= without value", "a =\n", (("a", "", ()),)),
    ("empty quotes", "a = ''\n", (("a", "", ()),)),
    ("comment after a name", "a # b\n", (("a", "", ()),)),
    ("comment touching a name", "a#b\n", (("a", "", ()),)),
    ("comment touching a value", "a = b#c\n", (("a", "b", ()),)),
    ("# in quotes", 'a = "#2"\n', (("a", "#2", ()),)),
    ("comment after quotes", "a = 'b' # c\n", (("a", "b", ()),)),
    ("comment touching quotes", "a = 'b'#c\n", (("a", "b", ()),)),
    ("apostrophe in double quotes", 'a = "it\'s"\n', (("a", "it's", ()),)),
    ("quotes inside a bare value", "a = x\"y'z\n", (("a", "x\"y'z", ()),)),
    ("= inside a value", "a = b = c\n", (("a", "b = c", ()),)),
    ("blanks kept in quotes", "a = '  b  '\n", (("a", "  b  ", ()),)),
    ("no escapes", "a = '\\n'\n", (("a", "\\n", ()),)),
    ("every name character", "aZ0$-_@.&+/b = 1\n", (("aZ0$-_@.&+/b", "1", ()),)),
    ("name of signs", "$ = 1\n", (("$", "1", ()),)),
    ("carriage returns before line ends", "a = 1\r\nb = 2\r\n", (("a", "1", ()), ("b", "2", ()))),
    ("a line of blanks", "a\n   \n    b\n", (("a", "", (("b", "", ()),)),)),
    ("a comment deeper than anything", "a\n            # c\n    b\n", (("a", "", (("b", "", ()),)),)),
    ("a comment after a tab", "\t# c\n", ()),
    ("a value with children", "a = 1\n    b = 2\n", (("a", "1", (("b", "2", ()),)),)),
    ("a name twice", "a = 1\na = 2\n", (("a", "1", ()), ("a", "2", ()))),
    ("two steps back", "a\n    b\n        c\nd\n", (("a", "", (("b", "", (("c", "", ()),)),)), ("d", "", ()))),
    ("UTF-8 in a value", "a = héé\n", (("a", "héé", ()),)),
    ("a no-break space is no blank", "a = \u00a0\n", (("a", "\u00a0", ()),)),
    ("a line of 1024 bytes", "a = " + "x" * 1020, (("a", "x" * 1020, ()),)),
    ("slash first", "/a = 1\n", REFUSED),
    ("slash last", "a/ = 1\n", REFUSED),
    ("no name", "= 1\n", REFUSED),
    ("two words", "a b\n", REFUSED),
    ("two words and =", "a b = 1\n", REFUSED),
    ("a name with a colon", "a:b = 1\n", REFUSED),
    ("a name beyond ASCII", "é = 1\n", REFUSED),
    ("quote never closed", "a = 'b\n", REFUSED),
    ("text after quotes", "a = 'b' c\n", REFUSED),
    ("three quotes", 'a = "b"c"\n', REFUSED),
    ("indented by a tab", "a\n\tb\n", REFUSED),
    ("indented by 2", "a\n  b\n", REFUSED),
    ("a comment indented by 2", "  # c\n", REFUSED),
    ("first line indented", "    a\n", REFUSED),
    ("two levels at once", "a\n        b\n", REFUSED),
]

STRICTER = [
    ("hash right after =: czmq takes the comment for the value", "a = #c\n", (("a", "#c", ()),)),
    ("hash touching =: czmq reads nothing", "a =#c\n", (("a", "", ()),)),
    ("a lone carriage return: a line end by the RFC, a blank to czmq", "a = 1\rb = 2\n", (("a", "1\rb = 2", ()),)),
    ("a tab inside a value: not printable", "a = b\tc\n", (("a", "b\tc", ()),)),
    ("a control character", "a = b\x07\n", (("a", "b\x07", ()),)),
    ("a control character beyond ASCII", "a = b\x85c\n", (("a", "b\x85c", ()),)),
    ("delete", "a = '\x7f'\n", (("a", "\x7f", ()),)),
    ("a form feed as a blank", "a\f=\f1\n", (("a", "1", ()),)),
    ("a control character in a comment", "# \x01\n", ()),
]


def ours(text: str) -> object:
    try:
        return tree_of(zpl_format.read(text))
    except ConfigError:
        return REFUSED


@pytest.mark.parametrize(("text", "tree"), [row[1:] for row in ALIKE], ids=[row[0] for row in ALIKE])
def test_czmq_and_we_read_alike(text, tree):
    assert czmq_reader()(text.encode()) == tree
    assert ours(text) == tree


@pytest.mark.parametrize(("text", "czmq_tree"), [row[1:] for row in STRICTER], ids=[row[0] for row in STRICTER])
def test_czmq_accepts_and_we_refuse(text, czmq_tree):
    assert czmq_reader()(text.encode()) == czmq_tree
    assert ours(text) is REFUSED


def test_more_than_czmq_can_be_shown_is_refused():
    with pytest.raises(ConfigError, match=r"line 1: control character U\+0000"):
        zpl_format.read("a = \0\n")
    with pytest.raises(ConfigError, match="line 2: longer than 1024 bytes"):
        zpl_format.read("\na = " + "x" * 1021)


def test_every_faulty_line_is_reported():
    with pytest.raises(ConfigError) as caught:
        zpl_format.read("a = 'b\nc = 1\n  d = 2\n= 3\n")
    assert caught.value.reasons == [
        "line 1: no closing '",
        "line 3: indented by 2 spaces: indent by 4 at a time",
        'line 4: a line starts with a name or with #, not with "="',
    ]


_tricky = st.lists(
    st.sampled_from(
        ["a", "b1", "/", "=", " = ", "#", "'", '"', " ", "    ", "\t", "\n", "\n    ", "\n        ", "\r", "é", ":"]
    ),
    max_size=30,
).map("".join)


# Promise: CONF-6
@given(_tricky)
@example("a = '#'\n    b#=\n")
def test_whatever_we_accept_czmq_reads_to_the_same_tree(text):
    tree = ours(text)
    if tree is not REFUSED:
        assert czmq_reader()(text.encode()) == tree


_names = st.text("abZ09$-_@.&+/", min_size=1, max_size=8).filter(zpl_format.is_name)
_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30).filter(
    lambda text: zpl_format.quoted(text) is not None
)


def _items(children):
    return st.builds(
        lambda name, items: Item(name, "", tuple(items)), _names, st.lists(children, min_size=1, max_size=3)
    )


@given(st.lists(st.recursive(st.builds(Item, _names, _values), _items, max_leaves=10), max_size=4))
def test_what_we_write_both_read_to_the_tree_it_was_written_from(items):
    root = Item("", items=tuple(items))
    text = zpl_format.write(root)
    assert ours(text) == tree_of(root)
    assert czmq_reader()(text.encode()) == tree_of(root)


@given(st.text(max_size=200))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    ours(text)
