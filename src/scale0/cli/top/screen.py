"""The screen of `scale0 top`, by Textual.

Lives here: keys, and where things stand. Never here: what is shown (`top_views`), or asking (`top_watcher`).
Invariants: nothing here waits for a broker; all text is data, never markup; it works in 80 columns and 24 lines.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from scale0.cli.network.snapshot import AdminRights
from scale0.cli.top.frame import Row, TopFrame
from scale0.cli.top.text import NO_RIGHT, head_of, wrong_of
from scale0.cli.top.views import COLOURS, VIEWS, TopView, ViewState, cells, chosen, detail, fitted
from scale0.cli.top.watcher import BrokerAway, TopWatcher

MAX_SHOWN: Final = 200
"""Rows of a table: nobody reads more, and a filter finds the others."""
SCROLLBAR: Final = 2
"""Columns that a table keeps for itself."""
WIDE: Final = 100
"""From here on there is room for counts beside the names of views."""
KEYS: Final = (
    ("1 to 7, tab", "another view"),
    ("up, down", "another row"),
    ("enter", "all that is known of the row, and what to type about it"),
    ("/", "only rows with these words; escape shows all again"),
    ("s", "sort by the next column"),
    ("r", "sort the other way round"),
    ("p", "pause, and go on"),
    ("?", "this help"),
    ("q", "quit"),
)
SHORT_KEYS: Final = "1-7 view  enter open  / filter  s sort  r reverse  p pause  ? help  q quit"


def said(text: str, style: str = "") -> Text:
    """A text; the style sheet cuts it where the screen ends."""
    return Text(text, style=style)


class DetailPage(ModalScreen[None]):
    """Pairs of names and texts on top of the tables; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss", "close", show=False) for key in ("escape", "q", "enter", "question_mark")
    ]

    def __init__(self, title: str, pairs: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._pairs = pairs

    def compose(self) -> ComposeResult:
        """A box that scrolls."""
        width = max((len(name) for name, _ in self._pairs), default=0)
        text = Text(f"{self._title}\n\n", style="bold")
        for name, value in self._pairs:
            text.append(f"{name.ljust(width)}  ", style="bold cyan")
            text.append(f"{value}\n", style="not bold")
        text.append("\nescape closes", style="not bold dim")
        with VerticalScroll(id="page"):
            yield Static(text)


class FrameReady(Message):
    """A look has ended."""

    def __init__(self, what: TopFrame | BrokerAway) -> None:
        super().__init__()
        self.what = what


class TopApp(App[None]):
    """The tables of a network, live."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "scale0 top"
    CSS = """
    #head, #wrong, #tabs, #note, #keys { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #head { text-style: bold; }
    #keys { dock: bottom; color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    DataTable { height: 1fr; }
    Page { align: center middle; }
    #page { width: 90%; height: 80%; border: round $accent; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number + 1), f"view({number})", view.name) for number, view in enumerate(VIEWS)),
        Binding("tab", "step(1)", "next view", priority=True),
        Binding("shift+tab", "step(-1)", "view before", priority=True),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "all rows"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
    ]

    def __init__(self, join: str, right: AdminRights, seconds: float, view: TopView) -> None:
        super().__init__()
        self._watcher = TopWatcher(join, right, seconds, self._heard)
        self._view = view
        self._choices = {one.name: ViewState(one.sort) for one in VIEWS}
        self._frame: TopFrame | None = None
        self._rows: list[Row] = []
        self._away: tuple[float, BrokerAway] | None = None
        self._paused = False

    def compose(self) -> ComposeResult:
        """From the top down."""
        for name in ("head", "wrong", "tabs"):
            yield Static(id=name)
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Input(id="filter", placeholder="words that must stand in a row")
        yield Static(id="note")
        yield Static(Text(SHORT_KEYS), id="keys")

    def on_mount(self) -> None:
        """Begin to look; a clock of our own keeps `away for` going."""
        self._draw_columns()
        self._draw()
        self.query_one(DataTable).focus()
        self._watcher.start()
        self.set_interval(1.0, self._draw_head)

    def on_unmount(self) -> None:
        """The end."""
        self._watcher.stop()

    def _heard(self, what: TopFrame | BrokerAway) -> None:
        """In the watcher's thread."""
        self.post_message(FrameReady(what))

    def on_looked(self, looked: FrameReady) -> None:
        """What the watcher found."""
        if isinstance(looked.what, BrokerAway):
            since = self._away[0] if self._away is not None else time.monotonic()
            self._away = (since, looked.what)
            self._draw_head()
            return
        self._away = None
        if not self._paused:
            self._frame = looked.what
            self._draw()

    # Drawing.

    def _draw_columns(self) -> None:
        table = self.query_one(DataTable)
        table.clear(columns=True)
        choice = self._choices[self._view.name]
        for number, column in enumerate(self._view.columns):
            mark = (" ▲" if choice.reverse else " ▼") if number == choice.column else ""
            table.add_column(Text(column.head + mark, justify="right" if column.number else "left"))

    def _draw(self) -> None:
        """All of it; the cursor stays on its row, wherever that went."""
        self._draw_head()
        if self._frame is None:
            return
        table = self.query_one(DataTable)
        marked = self._marked()
        now = time.time()
        found = chosen(self._view, self._frame, self._choices[self._view.name], now)
        self._rows = found[:MAX_SHOWN]
        place = table.scroll_offset
        table.clear()
        room = self.size.width - SCROLLBAR
        texts = [cells(self._view, row, now) for row in self._rows]
        at = self._choices[self._view.name].column
        texts = fitted(self._view, texts, at, room, 2 * table.cell_padding)
        for shown in texts:
            table.add_row(
                *(
                    Text(cell, style=COLOURS.get(cell.partition(" ")[0], ""), justify="right" if c.number else "left")
                    for cell, c in zip(shown, self._view.columns, strict=True)
                )
            )
        keys = [self._view.key(row) for row in self._rows]
        if marked in keys:
            table.move_cursor(row=keys.index(marked), scroll=False)
        table.scroll_to(place.x, place.y, animate=False)
        self._draw_note(len(found))

    def _marked(self) -> str | None:
        at = self.query_one(DataTable).cursor_row
        return self._view.key(self._rows[at]) if 0 <= at < len(self._rows) else None

    def _draw_head(self) -> None:
        head, wrong = self.query_one("#head", Static), self.query_one("#wrong", Static)
        if self._away is not None:
            since, away = self._away
            head.update(said(f"no answer for {time.monotonic() - since:.0f} s: {away.words}", "bold red"))
            step = f"next: {away.next_step}" if away.next_step else "what is below is old"
            wrong.update(said(f"looking again by itself; {step}", "red"))
        elif self._frame is None:
            head.update(Text("looking for the broker …"))
        else:
            worst = min((one.severity for one in self._frame.findings), key=list(COLOURS).index, default="ok")
            head.update(said(head_of(self._frame)))
            wrong.update(said(wrong_of(self._frame), COLOURS[worst]))
        self._draw_tabs()

    def _draw_tabs(self) -> None:
        text = Text(no_wrap=True)
        for number, view in enumerate(VIEWS):
            count = "" if self._frame is None or self.size.width < WIDE else f" {len(view.rows(self._frame))}"
            style = "reverse bold" if view is self._view else ""
            text.append(f"{number + 1} {view.name}{count}", style=style)
            text.append("  " if number < len(VIEWS) - 1 else "")
        self.query_one("#tabs", Static).update(text)

    def _draw_note(self, found: int) -> None:
        words = []
        if self._paused:
            words.append("paused: p goes on")
        if filtered := self._choices[self._view.name].words:
            words.append(f"only with {filtered!r}: escape shows all")
        if found > MAX_SHOWN:
            words.append(f"the first {MAX_SHOWN} of {found:,}")
        if not found:
            words.append(self._view.empty if not filtered else "no such row")
        if self._frame is not None and not self._frame.managed:
            words.append(NO_RIGHT)
        self.query_one("#note", Static).update(said(" · ".join(words), "dim"))

    # Keys.

    def action_view(self, number: int) -> None:
        """Another view."""
        self._view = VIEWS[number]
        self._rows = []
        self.query_one("#filter", Input).display = False
        self._draw_columns()
        self._draw()
        self.query_one(DataTable).focus()

    def action_step(self, step: int) -> None:
        """The next view, or the one before."""
        if not isinstance(self.screen, DetailPage):
            self.action_view((VIEWS.index(self._view) + step) % len(VIEWS))

    def action_sort(self) -> None:
        """By the next column."""
        choice = self._choices[self._view.name]
        self._choose(choice._replace(column=(choice.column + 1) % len(self._view.columns)))

    def action_reverse(self) -> None:
        """The other way round."""
        choice = self._choices[self._view.name]
        self._choose(choice._replace(reverse=not choice.reverse))

    def _choose(self, choice: ViewState) -> None:
        self._choices[self._view.name] = choice
        self._draw_columns()
        self._draw()

    def action_filter(self) -> None:
        """Ask for words."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.value = self._choices[self._view.name].words
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """While somebody types."""
        choice = self._choices[self._view.name]
        if event.value != choice.words:
            self._choose(choice._replace(words=event.value))

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Back to the rows."""
        self.query_one("#filter", Input).display = False
        self.query_one(DataTable).focus()

    def action_clear(self) -> None:
        """All rows again."""
        line = self.query_one("#filter", Input)
        line.display = False
        line.value = ""
        self._choose(self._choices[self._view.name]._replace(words=""))
        self.query_one(DataTable).focus()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self._paused = not self._paused
        self._watcher.pause(self._paused)
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: all that is known of a row."""
        if 0 <= event.cursor_row < len(self._rows):
            row = self._rows[event.cursor_row]
            self.push_screen(DetailPage(self._view.key(row), detail(self._view, row)))

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(DetailPage("scale0 top: keys", list(KEYS)))
