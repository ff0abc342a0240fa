"""Work, seen: a worker dies and its tasks move on, a failed one is retried, one is cancelled; nobody presses reload."""

from __future__ import annotations

import contextlib

import pytest
from playwright.sync_api import expect

from tests.fakes.waiting import until
from tests.processes.console.chromium import PATIENCE_MS

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def gate(tmp_path):
    """A file that lets waiting tasks end; at the end of the test they all do."""
    path = tmp_path / "gate"
    yield path
    path.touch()


# Promise: CON-8
def test_a_worker_dies_and_its_tasks_move_before_ones_eyes(net, opened, gate):
    with contextlib.ExitStack() as stack:
        ann = stack.enter_context(net.worker("ann"))
        tasks = [net.submit("thumbs.make", str(gate)) for _ in range(2)]
        until(lambda: all(net.task(task)["status"] == "running" for task in tasks), "ann has both")
        bob = stack.enter_context(net.worker("bob"))

        clients = opened("viewer", "clients?role=backend&match=thumbs")
        services = opened("viewer", "services")
        one = opened("viewer", f"tasks/{tasks[0]}")
        listed = opened("viewer", "tasks?method=thumbs.make")
        windows = (clients, services, one, listed)
        expect(clients.row("ann", "2 of 7")).to_be_visible(timeout=PATIENCE_MS)
        expect(clients.row("bob", "0 of 7")).to_be_visible(timeout=PATIENCE_MS)
        cells = services.row("thumbs.make").get_by_role("cell")
        expect(cells.nth(8)).to_have_text("2", timeout=PATIENCE_MS)
        expect(one.page.locator(".gantt-row")).to_have_count(1, timeout=PATIENCE_MS)
        expect(listed.row("thumbs.make", "running", "ann")).to_have_count(2, timeout=PATIENCE_MS)
        marks = [each.stays() for each in windows]

        ann.process.kill()

        expect(clients.row("ann")).to_have_count(0, timeout=PATIENCE_MS)
        expect(clients.row("bob", "2 of 7")).to_be_visible(timeout=PATIENCE_MS)
        expect(cells.nth(8)).to_have_text("1", timeout=PATIENCE_MS)
        expect(listed.row("thumbs.make", "running", "bob")).to_have_count(2, timeout=PATIENCE_MS)
        attempts = one.page.locator(".gantt-row")
        expect(attempts).to_have_count(2, timeout=PATIENCE_MS)
        expect(attempts.nth(0)).to_contain_text("1. ann")
        expect(attempts.nth(1)).to_contain_text("2. bob")
        expect(one.page.locator(".story")).to_contain_text("ann")

        gate.touch()
        expect(one.page.locator(".head-row")).to_contain_text("finished", timeout=PATIENCE_MS)
        expect(listed.row("thumbs.make", "finished", "bob")).to_have_count(2, timeout=PATIENCE_MS)
        assert all(mark.still() for mark in marks), "nothing was reloaded"
        assert bob.process.poll() is None


# Promise: CON-9
def test_a_failed_task_is_retried_from_its_page(net, opened, gate):
    with net.worker("cat"):
        task = net.submit("mail.send", str(gate))
        seen = opened("operator", f"tasks/{task}")
        head = seen.page.locator(".head-row")
        expect(head).to_contain_text("failed", timeout=PATIENCE_MS)
        seen.see("the mailbox is full")

        gate.touch()
        seen.press("Retry", head)
        seen.see(f"Task {task} is queued again.")
        expect(head).to_contain_text("finished", timeout=PATIENCE_MS)
        expect(seen.page.locator(".gantt-row")).to_have_count(2, timeout=PATIENCE_MS)
        expect(head.get_by_role("button")).to_have_count(0)


# Promise: CON-9
def test_a_task_is_cancelled_after_a_question_and_the_audit_knows_who(net, opened, gate):
    with net.worker("dan"):
        task = net.submit("thumbs.make", str(gate))
        seen = opened("operator", "tasks?status=running")
        row = seen.page.locator(f'[data-row]:has(a[href="#/tasks/{task}"])')
        seen.press("Cancel", row)
        expect(seen.dialog).to_contain_text(f"scale0 task cancel {task}")
        seen.press("Not now", seen.dialog)
        expect(seen.dialog).to_have_count(0)
        assert net.task(task)["status"] == "running"

        seen.press("Cancel", row)
        seen.press("Cancel", seen.dialog)
        until(lambda: net.task(task)["status"] == "cancelled", "it is cancelled")
        expect(row).to_have_count(0, timeout=PATIENCE_MS)

        seen.go("audit")
        expect(seen.row("the-operator", "cancel_task").first).to_contain_text("127.0.0.1", timeout=PATIENCE_MS)
