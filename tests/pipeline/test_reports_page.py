"""A report's page stands alone, is well-formed, and runs nothing that a name says.

Promise: PIPE-9
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from scale0.pipeline.reports import axes, formatting
from scale0.pipeline.reports.catalog import MAKERS, make
from scale0.pipeline.reports.html import STYLE, page
from scale0.pipeline.reports.model import Bars, Cone, LinePlot, PlotLine, Stacks
from scale0.pipeline.reports.plots import LEAST, STRIP_HEIGHT, draw, heights
from scale0.pipeline.reports.query import ReportQuery
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
from tests.pipeline import reports_made as made

VOID = {"meta", "br", "line", "rect", "circle", "path", "polygon"}


class Tree(HTMLParser):
    """What a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.fixture(scope="module")
def html(reports_root):
    return page(make(tuple(MAKERS), reports_root, ReportQuery(why=True)), None)


@pytest.fixture(scope="module")
def tree(html):
    found = Tree()
    found.feed(html)
    assert not found.open
    return found


def test_names_from_the_network_are_text_wherever_they_stand(html, tree):
    assert "<script" not in html.lower()
    assert made.EVIL in {text for tag, text in tree.texts if tag == "th"}
    assert any(made.EVIL in text for tag, text in tree.texts if tag == "title"), "also in plots"
    assert not any(name.startswith("on") for _, attributes in tree.tags for name in attributes)


def test_the_page_fetches_nothing_and_says_so(html, tree):
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tree.tags}
    policy = next(a["content"] for tag, a in tree.tags if tag == "meta" and a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_ids_are_unique_and_references_lead_somewhere(tree):
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tree.tags:
        for reference in (attributes.get("aria-labelledby") or "").split():
            assert reference in ids
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


def test_plots_have_words_and_tables_have_heads(html, tree):
    figures = re.findall(r"<figure.*?</figure>", html, re.S)
    assert len(figures) >= 10
    for figure in figures:
        assert re.search(r'role="img" aria-labelledby="\S+ \S+"><title id="[^"]+">[^<]+</title><desc id=', figure)
    assert html.count("<table") == html.count("<thead>")
    heads = [attributes for tag, attributes in tree.tags if tag == "th"]
    assert all(attributes.get("scope") in ("row", "col") for attributes in heads)
    assert all(tag != "html" or attributes["lang"] == "en" for tag, attributes in tree.tags)


def test_every_class_of_a_plot_has_a_style(tree):
    drawn = {"rect", "line", "path", "polygon", "circle"}
    classes = {name for tag, a in tree.tags if tag in drawn for name in (a.get("class") or "").split()}
    for name in classes - {"fill"}:
        assert f".{name}" in STYLE, name
    assert "c-unobserved" in classes, "what was not observed is hatched"


def test_nothing_is_drawn_outside_its_plot(html):
    for width, height, body in re.findall(
        r'<figure.*?<svg viewBox="0 0 (\d+) (\d+)" role(.*?)</svg></figure>', html, re.S
    ):
        for x, y, w, h in re.findall(
            r'<rect class="[^"]+" x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)"', body
        ):
            assert -0.1 <= float(x) <= float(x) + float(w) <= float(width) + 0.1
            assert -0.1 <= float(y) <= float(y) + float(h) <= float(height) + 0.1
        for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", body):
            assert 0 <= float(x) <= float(width)
            assert 0 <= float(y) <= float(height)


@pytest.mark.parametrize(("scheme", "ground"), [("light", "#fff"), ("dark", "#0d1117")])
def test_text_has_contrast_by_day_and_by_night(scheme, ground):
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]+)", blocks[0 if scheme == "light" else 1]))
    assert colours["paper"] == ground
    for name in ("ink", "soft", "link"):
        for behind in ("paper", "band"):
            assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
    for name in ("up", "down", "hatch", "k0", "k1", "k2", "k3"):
        assert contrast(colours[name], ground) >= 3, name


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) > 4 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# Plots.


def test_a_gap_in_a_line_is_a_gap():
    points = tuple((at * DAY_US, None if at == 2 else 1.0 + at) for at in range(5))
    drawn = draw(LinePlot("t", "a", "seconds", (PlotLine("p50", points),)), "k")
    path = re.search(r'<path class="line k0" d="([^"]+)"', drawn)
    assert path
    assert path[1].count("M") == 2
    assert path[1].count("L") == 2


@pytest.mark.parametrize(
    "plot",
    [
        LinePlot("t", "a", "seconds", (PlotLine("p50", ((0, None),)),)),
        LinePlot("t", "a", "share", (PlotLine("p50", ((0, 0.0),)),)),
        Stacks("t", "a", ("one",), HOUR_US, ()),
        Stacks("t", "a", ("one",), HOUR_US, ((0, (0,)),)),
        Bars("t", "a", ()),
        Bars("t", "a", ((1.0, 1.02, 5),), (("p50", 1.01),)),
        Cone("t", "a", (), 5 * DAY_US, 1.0, 1.0, 6 * DAY_US, 5 * DAY_US, None),
        Cone("t", "a", ((0, -3.0), (DAY_US, -4.0)), DAY_US, -4.0, -9.0, 9 * DAY_US, 3 * DAY_US, 9000 * DAY_US),
    ],
)
def test_a_plot_of_almost_nothing_is_still_a_plot(plot):
    drawn = draw(plot, "k")
    assert drawn.startswith("<figure")
    assert "nan" not in drawn.lower().replace("unanswered", "")


@pytest.mark.parametrize(
    "shares",
    [
        [("up", 1.0), ("down", 0.0)],
        [("up", 0.9999), ("down", 0.0001)],
        [("up", 0.2), ("unobserved", 0.2), ("downtime", 0.2), ("down", 0.2), ("absent", 0.2)],
        [("up", 0.0001), ("unobserved", 0.0001), ("downtime", 0.9996), ("down", 0.0001), ("absent", 0.0001)],
    ],
)
def test_a_strip_shows_whatever_was_there(shares):
    found = heights(shares)
    assert sum(height for _, height in found) == pytest.approx(STRIP_HEIGHT)
    assert {kind for kind, _ in found} == {kind for kind, share in shares if share}
    assert all(height >= LEAST for _, height in found)


def test_ticks_are_round_and_few():
    assert axes.nice_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert axes.nice_ticks(3, 3) == [3]
    assert axes.log_ticks(0.004, 3) == [0.01, 0.1, 1]
    names = [name for _, name in axes.time_ticks(20_583 * DAY_US, 20_613 * DAY_US, 8)]
    assert names == ["11 May", "18 May", "25 May", "1 Jun", "8 Jun"], "weeks begin on Monday"
    assert [name for _, name in axes.time_ticks(20_583 * DAY_US, 20_584 * DAY_US, 5)][:2] == ["10 May", "06:00"]


def test_a_name_that_is_too_long_loses_its_middle():
    assert axes.fitted("short", 100) == "short"
    long = axes.fitted("check agent-000000001/a-very-long-name-of-a-check-7", 100)
    assert len(long) <= 100 / axes.CHARACTER
    assert long.startswith("check")
    assert long.endswith("7")


# Words.


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "seconds", "–"),
        (0, "seconds", "0 s"),
        (0.000012, "seconds", "12 µs"),
        (0.0123, "seconds", "12.3 ms"),
        (3.25, "seconds", "3.25 s"),
        (119, "seconds", "119 s"),
        (3_600, "seconds", "1 h"),
        (3_661, "seconds", "1 h 1 min"),
        (187_200, "seconds", "2 d 4 h"),
        (0.999999, "availability", "99.999 %"),
        (1.0, "availability", "100 %"),
        (0.5, "availability", "50.000 %"),
        (0.0000001, "share", "0.001 %"),
        (0.99999999, "share", "99.999 %"),
        (0.025, "share", "2.5 %"),
        (1_234_567, "count", "1,234,567"),
        (1234.5, "number", "1,234"),
        (0.01234, "number", "0.0123"),
        (float("nan"), "number", "–"),
        (1_500_000, "bytes", "1.5 MB"),
        (0.355, "change", "+36 %"),
        (-0.0123, "points", "-1.23 pp"),
        (20_583 * DAY_US, "time", "2026-05-10"),
        (20_583 * DAY_US + 5 * 1_000_000, "time", "2026-05-10 00:00:05"),
        (True, "yes", "yes"),
        ("<b>", "text", "<b>"),
    ],
)
def test_values_are_short_and_never_rounded_to_whole(value, unit, text):
    assert formatting.text(value, unit) == text
