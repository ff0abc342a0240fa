// One task: its status, its error, its attempts on a time scale, and its timeline.

import { query } from "../api";
import { useLive } from "../live";
import { bytes, clock, epoch, moment, span } from "../logic/format";
import { attemptsOf, type Attempt } from "../logic/attempts";
import { Command, Empty, Facts, now, Panel, Shown, State, Words } from "../parts/common";
import type { Moment, NetworkEvent, Task } from "../types";
import { TaskActions } from "./tasks";

const TIMELINE_MS = 4_000;
const MAX_EVENTS = 500;

export function OneTask({ id }: { id: string }) {
  const path = `/tasks/${encodeURIComponent(id)}`;
  const task = useLive<Task>(path);
  const timeline = useLive<{ items: Moment[]; unseen?: string[] }>(`${path}/timeline`, TIMELINE_MS);
  // The events have the duration of each attempt; the timeline has the sentences.
  const events = useLive<{ items: NetworkEvent[] }>(`/events${query({ ref: id, kind: "task.*", limit: MAX_EVENTS })}`, TIMELINE_MS);
  return (
    <>
      <p class="crumbs"><a href="#/tasks">Tasks</a> / <b class="mono">{id}</b></p>
      <Shown live={task}>{(row) => <About task={row} />}</Shown>
      <Panel title="Attempts">
        <Shown live={events}>{({ items }) => <Attempts items={items} task={task.data} />}</Shown>
      </Panel>
      <Panel title="Timeline">
        <Shown live={timeline}>{({ items, unseen }) => <Timeline items={items} unseen={unseen ?? []} id={id} />}</Shown>
      </Panel>
    </>
  );
}

/** The data of an error; a traceback keeps its lines. */
function shownData(data: unknown): string {
  if (typeof data === "string") return data;
  const lines = Object.entries(data as object).map(([key, value]) => (typeof value === "string" ? `${key}: ${value}` : `${key}: ${JSON.stringify(value)}`));
  return Array.isArray(data) ? JSON.stringify(data, null, 2) : lines.join("\n");
}

function About({ task }: { task: Task }) {
  const progress = task.progress === undefined || task.progress === null ? null : typeof task.progress === "string" ? task.progress : JSON.stringify(task.progress);
  return (
    <>
      <div class="head-row"><State state={task.status} /> <b>{task.method}</b> <TaskActions task={task} /></div>
      {task.error && (
        <div class="trouble"><p><b>{task.error.code}</b> {task.error.message}</p>
          {task.error.data !== undefined && task.error.data !== null && <pre>{shownData(task.error.data)}</pre>}
        </div>
      )}
      <Facts rows={[
        ["Client", task.client_id], ["Node", task.node_id ?? "–"], ["Priority", task.priority],
        ["Attempt", `${task.attempt}${task.max_attempts ? ` of ${task.max_attempts}` : ""}`], ["Starts", task.starts],
        ["Submitted", moment(task.submitted)], ["Started", moment(task.started)], ["Ended", moment(task.finished)],
        ["Waited", span(task.started ? task.started - task.submitted : null)],
        ["Parameters", bytes(task.params_bytes)], ["Result", bytes(task.result_bytes)],
        ...(progress ? [["Progress", progress] as [string, string]] : []),
      ]} />
      <p class="faint">Parameters and results belong to the submitter and are not shown here.</p>
    </>
  );
}

/** One bar per attempt, on a common time scale. */
function Attempts({ items, task }: { items: NetworkEvent[]; task: Task | undefined }) {
  const attempts = attemptsOf(items, task, now.value);
  if (!attempts.length) return <p class="calm">The task was not assigned to a node yet.</p>;
  const from = Math.min(...attempts.map((each) => each.from), ...items.map((each) => epoch(each.at ?? each.time) ?? Infinity));
  const to = Math.max(...attempts.map((each) => each.to), from + 0.001);
  return (
    <div class="gantt" role="list" aria-label="Attempts">
      {attempts.map((each, at) => <Bar key={at} attempt={each} from={from} whole={to - from} />)}
      <div class="gantt-axis" aria-hidden="true"><span>{clock(from)}</span><span>{span(to - from)}</span><span>{clock(to)}</span></div>
    </div>
  );
}

function Bar({ attempt, from, whole }: { attempt: Attempt; from: number; whole: number }) {
  const left = ((attempt.from - from) / whole) * 100;
  const width = Math.max(0.6, ((attempt.to - attempt.from) / whole) * 100);
  const words = `Attempt ${attempt.attempt} on ${attempt.node || "a node"}: ${attempt.state} after ${span(attempt.to - attempt.from)}`;
  return (
    <div class="gantt-row" role="listitem">
      <span class="gantt-name">{attempt.attempt}. {attempt.node || "–"}</span>
      <span class="gantt-track" title={words}>
        <span class={`gantt-bar ${attempt.tone}`} style={{ left: `${left}%`, width: `${Math.min(width, 100 - left)}%` }} />
      </span>
      <span class="gantt-end"><State state={attempt.tone}>{attempt.state}</State> <span class="faint">{span(attempt.to - attempt.from)}</span></span>
    </div>
  );
}

function Timeline({ items, unseen, id }: { items: Moment[]; unseen: string[]; id: string }) {
  if (!items.length) return <Empty title="This machine has no events of the task." commands={[`scale0 explain ${id}`]}>They may be at another broker, or have expired.</Empty>;
  return (
    <>
      <ol class="story">
        {items.map((each, at) => {
          const gap = at ? (epoch(each.time) ?? 0) - (epoch(items[at - 1]?.time) ?? 0) : 0;
          return (
            <li key={at}>
              <time title={moment(each.time)}>{clock(each.time, true)}</time>
              <span class="gap-words">{gap >= 0.001 ? `+${span(gap)}` : ""}</span>
              <span class="kind">{each.kind}</span>
              <span>{each.words}</span>
            </li>
          );
        })}
      </ol>
      {unseen.map((words) => <p key={words} class="faint">Missing: <Words text={words} /></p>)}
      <Command text={`scale0 explain ${id}`} />
    </>
  );
}
