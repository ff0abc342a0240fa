"""The screen of `scale0 top` (Textual), and the thread that polls the broker for it.

The screen never waits for a broker, all text is data and never markup, and it works in 80 columns and 24 lines. Polling
takes at most a tenth of the time, however large the network is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from scale0.cli.common import errors
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.network import snapshot
from scale0.cli.network.snapshot import AdminRights
from scale0.cli.top.views import (
    COLOURS,
    NO_CREDENTIALS,
    VIEWS,
    Row,
    TopFrame,
    TopView,
    ViewState,
    cells,
    chosen,
    detail,
    fitted,
    frame_of,
    head_of,
    problems_of,
)
from scale0.kernel.errors import Scale0Error

if TYPE_CHECKING:
    from scale0.cli.network.snapshot import Snapshot

MAX_SHOWN: Final = 200
"""Rows of a table; the filter finds the others."""
SCROLLBAR: Final = 2
"""Columns that the table needs for its scroll bar."""
WIDE: Final = 100
"""From this width on, there is room for counts beside the names of views."""
KEYS: Final = (
    ("1 to 7, tab", "another view"),
    ("up, down", "another row"),
    ("enter", "all values of the row, and commands about it"),
    ("/", "filter by words; escape shows all rows again"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("p", "pause or continue"),
    ("?", "this help"),
    ("q", "quit"),
)
SHORT_KEYS: Final = "1-7 view  enter open  / filter  s sort  r reverse  p pause  ? help  q quit"

PAUSE_FACTOR: Final = 9
"""A pause is this many times as long as a poll, so that a large network costs its broker a tenth of the time."""
AWAY_SECONDS: Final = 0.5
"""The pause while the broker does not answer; each attempt already takes seconds."""


class BrokerAway(NamedTuple):
    """The broker did not answer: the error and the next step."""

    message: str
    next_step: str


class Poller:
    """Polls the broker in a thread of its own, and publishes frames until it is stopped."""

    def __init__(
        self, join: str, rights: AdminRights, seconds: float, publish: Callable[[TopFrame | BrokerAway], None]
    ) -> None:
        self._join = join
        self._rights = rights
        self._seconds = seconds
        self._publish_frame = publish
        self._stopped = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._before: Snapshot | None = None
        # A daemon, so that quitting does not wait for an answer.
        self._thread = threading.Thread(target=self._run, name="scale0-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._running.set()

    def pause(self, paused: bool) -> None:
        """Stop polling for a while."""
        if paused:
            self._running.clear()
        else:
            self._running.set()

    def _run(self) -> None:
        with connect(self._join, DISCOVERY_SECONDS) as client:
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    found = snapshot.take(client, self._rights)
                    self._publish(frame_of(found, self._before))
                    self._before = found
                    pause = max(self._seconds, PAUSE_FACTOR * (time.monotonic() - began))
                except (Scale0Error, OSError) as error:
                    self._before = None
                    trouble = errors.command_error(error)
                    self._publish(BrokerAway(trouble.message, trouble.next_step))
                    pause = AWAY_SECONDS
                except errors.CommandError as trouble:
                    self._publish(BrokerAway(trouble.message, trouble.next_step))
                    pause = AWAY_SECONDS
                self._stopped.wait(pause)
                self._running.wait()

    def _publish(self, what: TopFrame | BrokerAway) -> None:
        if not self._stopped.is_set():
            self._publish_frame(what)


class DetailPage(ModalScreen[None]):
    """Pairs of names and texts on top of the tables; escape, q, enter and ? close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss", "close", show=False) for key in ("escape", "q", "enter", "question_mark")
    ]

    def __init__(self, title: str, pairs: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._pairs = pairs

    def compose(self) -> ComposeResult:
        width = max((len(name) for name, _ in self._pairs), default=0)
        text = Text(f"{self._title}\n\n", style="bold")
        for name, value in self._pairs:
            text.append(f"{name.ljust(width)}  ", style="bold cyan")
            text.append(f"{value}\n", style="not bold")
        text.append("\nescape closes", style="not bold dim")
        with VerticalScroll(id="page"):
            yield Static(text)


class FrameReady(Message):
    """The poller has a frame, or the broker did not answer."""

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
    DetailPage { align: center middle; }
    #page { width: 90%; height: 80%; border: round $accent; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number + 1), f"view({number})", view.name) for number, view in enumerate(VIEWS)),
        Binding("tab", "step(1)", "next view", priority=True),
        Binding("shift+tab", "step(-1)", "previous view", priority=True),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "all rows"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
    ]

    def __init__(self, join: str, rights: AdminRights, seconds: float, view: TopView) -> None:
        super().__init__()
        self._poller = Poller(join, rights, seconds, self._received)
        self._view = view
        self._choices = {one.name: ViewState(one.sort) for one in VIEWS}
        self._frame: TopFrame | None = None
        self._rows: list[Row] = []
        self._away: tuple[float, BrokerAway] | None = None
        self._paused = False

    def compose(self) -> ComposeResult:
        for name in ("head", "wrong", "tabs"):
            yield Static(id=name)
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Input(id="filter", placeholder="words that a row must contain")
        yield Static(id="note")
        yield Static(Text(SHORT_KEYS), id="keys")

    def on_mount(self) -> None:
        """Start polling; a timer updates `no answer for`."""
        self._draw_columns()
        self._draw()
        self.query_one(DataTable).focus()
        self._poller.start()
        self.set_interval(1.0, self._draw_head)

    def on_unmount(self) -> None:
        self._poller.stop()

    def _received(self, what: TopFrame | BrokerAway) -> None:
        """Runs in the thread of the poller."""
        self.post_message(FrameReady(what))

    def on_frame_ready(self, event: FrameReady) -> None:
        if isinstance(event.what, BrokerAway):
            since = self._away[0] if self._away is not None else time.monotonic()
            self._away = (since, event.what)
            self._draw_head()
            return
        self._away = None
        if not self._paused:
            self._frame = event.what
            self._draw()

    def _draw_columns(self) -> None:
        table = self.query_one(DataTable)
        table.clear(columns=True)
        choice = self._choices[self._view.name]
        for number, column in enumerate(self._view.columns):
            mark = (" ▲" if choice.reverse else " ▼") if number == choice.column else ""
            table.add_column(Text(column.head + mark, justify="right" if column.number else "left"))

    def _draw(self) -> None:
        """Draw everything; the cursor stays on its row, wherever it moved."""
        self._draw_head()
        if self._frame is None:
            return
        table = self.query_one(DataTable)
        marked = self._marked()
        now = time.time()
        found = chosen(self._view, self._frame, self._choices[self._view.name], now)
        self._rows = found[:MAX_SHOWN]
        offset = table.scroll_offset
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
        table.scroll_to(offset.x, offset.y, animate=False)
        self._draw_note(len(found))

    def _marked(self) -> str | None:
        at = self.query_one(DataTable).cursor_row
        return self._view.key(self._rows[at]) if 0 <= at < len(self._rows) else None

    def _draw_head(self) -> None:
        head, wrong = self.query_one("#head", Static), self.query_one("#wrong", Static)
        if self._away is not None:
            since, away = self._away
            head.update(Text(f"no answer for {time.monotonic() - since:.0f} s: {away.message}", "bold red"))
            step = f"next: {away.next_step}" if away.next_step else "the rows below are old"
            wrong.update(Text(f"retrying; {step}", "red"))
        elif self._frame is None:
            head.update(Text("connecting to the broker …"))
        else:
            worst = min((one.severity for one in self._frame.findings), key=list(COLOURS).index, default="ok")
            head.update(Text(head_of(self._frame)))
            wrong.update(Text(problems_of(self._frame), COLOURS[worst]))
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
            words.append("paused: p continues")
        if filtered := self._choices[self._view.name].words:
            words.append(f"filter {filtered!r}: escape shows all")
        if found > MAX_SHOWN:
            words.append(f"the first {MAX_SHOWN} of {found:,}")
        if not found:
            words.append(self._view.empty if not filtered else "no row matches")
        if self._frame is not None and not self._frame.managed:
            words.append(NO_CREDENTIALS)
        self.query_one("#note", Static).update(Text(" · ".join(words), "dim"))

    def action_view(self, number: int) -> None:
        self._view = VIEWS[number]
        self._rows = []
        self.query_one("#filter", Input).display = False
        self._draw_columns()
        self._draw()
        self.query_one(DataTable).focus()

    def action_step(self, step: int) -> None:
        if not isinstance(self.screen, DetailPage):
            self.action_view((VIEWS.index(self._view) + step) % len(VIEWS))

    def action_sort(self) -> None:
        choice = self._choices[self._view.name]
        self._choose(choice._replace(column=(choice.column + 1) % len(self._view.columns)))

    def action_reverse(self) -> None:
        choice = self._choices[self._view.name]
        self._choose(choice._replace(reverse=not choice.reverse))

    def _choose(self, choice: ViewState) -> None:
        self._choices[self._view.name] = choice
        self._draw_columns()
        self._draw()

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.display = True
        line.value = self._choices[self._view.name].words
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        choice = self._choices[self._view.name]
        if event.value != choice.words:
            self._choose(choice._replace(words=event.value))

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(DataTable).focus()

    def action_clear(self) -> None:
        line = self.query_one("#filter", Input)
        line.display = False
        line.value = ""
        self._choose(self._choices[self._view.name]._replace(words=""))
        self.query_one(DataTable).focus()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._poller.pause(self._paused)
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if 0 <= event.cursor_row < len(self._rows):
            row = self._rows[event.cursor_row]
            self.push_screen(DetailPage(self._view.key(row), detail(self._view, row)))

    def action_help(self) -> None:
        self.push_screen(DetailPage("scale0 top: keys", list(KEYS)))
