"""A web application that answers at once and submits the work as durable tasks.

scale0 up
scale0 worker thumbnails.py
uvicorn app:app

What it promises to its own callers: 202 means that the work is on disk and will be done, whoever dies; the same
Idempotency-Key never makes two; 503 with Retry-After means: not now, ask again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field, HttpUrl

import scale0
from scale0.errors import NoSuchTask, TaskTooBig

BROKER = os.environ.get("SCALE0_BROKER", "tcp://127.0.0.1:5700")
ANSWER_SECONDS = 2.0
"""How long a caller waits for an unavailable broker. A web request must not wait long."""
RETRY_AFTER_SECONDS = 5
ENDED = ("finished", "failed", "cancelled")
LOOK_SECONDS = 0.2
"""How often progress is polled, for each connected browser."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One connection for each process, while it serves.

    Tasks belong to `task_client`: with the same one in every process, and after a restart, any of them answers for the
    tasks of all, and knows the keys of all.
    """
    async with scale0.AsyncClient(BROKER, task_client="thumbnails-app", timeout=ANSWER_SECONDS) as net:
        app.state.net = net
        yield


app = FastAPI(title="Thumbnails", lifespan=lifespan)


def network(request: Request) -> scale0.AsyncClient:
    """The connection of this process."""
    net: scale0.AsyncClient = request.app.state.net
    return net


Network = Annotated[scale0.AsyncClient, Depends(network)]


class Wanted(BaseModel):
    """The request of a caller."""

    url: HttpUrl
    width: int = Field(200, ge=16, le=4_096)


class TaskView(BaseModel):
    """A task, as callers see it."""

    id: str
    status: str
    """scheduled, queued, assigned, running, finished, failed or cancelled."""
    progress: float | None = None
    note: str = ""
    result: Any = None
    error: str | None = None


class Accepted(BaseModel):
    """The response to a caller."""

    id: str
    href: str


@app.post("/thumbnails", status_code=202)
async def make_thumbnail(
    wanted: Wanted,
    response: Response,
    net: Network,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Accepted:
    """Accept it. A caller that did not receive the answer sends the same key again, and gets the same task."""
    options = net.task(key=idempotency_key) if idempotency_key else net.task()
    task = await options.submit("thumbs.make", str(wanted.url), wanted.width)  # it is on disk when this returns
    href = response.headers["Location"] = f"/tasks/{task.id}"
    return Accepted(id=task.id, href=href)


@app.get("/tasks/{task_id}")
async def show_task(task_id: str, net: Network) -> TaskView:
    """The current state of a task."""
    return await view_of(task_by(net, task_id))


@app.delete("/tasks/{task_id}", status_code=204)
async def cancel_task(task_id: str, net: Network) -> None:
    """Cancel it. A task that has ended does not change."""
    await task_by(net, task_id).cancel()


@app.get("/tasks/{task_id}/events", response_class=EventSourceResponse)
async def watch_task(task_id: str, net: Network) -> AsyncIterator[ServerSentEvent]:
    """Each change until its end, for an EventSource in a browser: `progress`, and at last `end`."""
    task = task_by(net, task_id)
    told: TaskView | None = None
    while True:
        try:
            view = await view_of(task)
        except scale0.CallError as error:
            # The response has begun, so it is too late for a status code. A browser reconnects by itself.
            yield ServerSentEvent(event="trouble", data=error.message, retry=RETRY_AFTER_SECONDS * 1_000)
            return
        ended = view.status in ENDED
        if view != told:
            yield ServerSentEvent(event="end" if ended else "progress", data=view)
            told = view
        if ended:
            return
        await task.wait(LOOK_SECONDS)


def task_by(net: scale0.AsyncClient, task_id: str) -> scale0.AsyncTask:
    """A task of this application."""
    try:
        return net.task_of(task_id)
    except ValueError as error:  # no id of any task
        raise NoSuchTask(404, str(error), task_id=task_id) from error


async def view_of(task: scale0.AsyncTask) -> TaskView:
    """The state of a task at the broker, and its outcome if it has ended."""
    status = await task.status()
    share, note = status.progress
    rounded = None if share is None else round(share, 2)
    view = TaskView(id=task.id, status=status.status, progress=rounded, note=note)
    if not status.ended:
        return view
    try:
        return view.model_copy(update={"result": await task.result(ANSWER_SECONDS), "progress": 1.0})
    except (scale0.TaskFailed, scale0.TaskCancelled) as error:
        return view.model_copy(update={"error": error.message})


# The handler of the nearest class is called, so the order does not matter.


@app.exception_handler(NoSuchTask)
async def unknown(_: Request, error: NoSuchTask) -> JSONResponse:
    """Unknown, another application's, or expired: its result_ttl (a day) has passed."""
    return JSONResponse({"detail": "no such task"}, 404)


@app.exception_handler(TaskTooBig)
async def too_big(_: Request, error: TaskTooBig) -> JSONResponse:
    """The request is too large; a retry does not help."""
    return JSONResponse({"detail": error.message}, 413)


@app.exception_handler(scale0.CallError)
async def not_now(_: Request, error: scale0.CallError) -> JSONResponse:
    """No broker answers, it drains, or its queue or disk is full. With a key it is safe to send the same again: if the
    task was stored after all, that is the one that is answered."""
    return JSONResponse({"detail": error.message}, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})
