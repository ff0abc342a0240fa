// A sortable table. A long table renders only the visible rows; screen readers get the total count.

import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { sorted, windowOf, type SortKey } from "../logic/rows";

export interface ColumnOf<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  /** The sort key; without it, the column is not sortable. */
  by?: (row: T) => SortKey;
  number?: boolean;
  /** Takes the remaining width, and is truncated. */
  wide?: boolean;
  /** The head is only for screen readers: a column of buttons. */
  bare?: boolean;
}

interface Props<T> {
  label: string;
  rows: readonly T[];
  columns: ColumnOf<T>[];
  id: (row: T) => string;
  empty?: ComponentChildren;
  sort?: { column: number; down: boolean };
  tone?: (row: T) => string;
}

/** A longer table renders only the visible rows, all of one height. */
const WHOLE_ROWS = 120;
const ROW_HEIGHT = 33;

export function Table<T>({ label, rows, columns, id, empty, sort, tone }: Props<T>) {
  const [order, setOrder] = useState<{ column: number; down: boolean } | null>(sort ?? null);
  const by = order ? columns[order.column]?.by : undefined;
  const shown = useMemo(
    () => (by && order ? sorted(rows, by, order.down) : rows),
    [rows, by === undefined, order?.column, order?.down],
  );
  if (!rows.length && empty) return <>{empty}</>;
  const turn = (at: number): void => {
    setOrder((old) => (old?.column === at ? { column: at, down: !old.down } : { column: at, down: !!columns[at]?.number }));
  };
  const head = (
    <thead role="rowgroup">
      <tr role="row">
        {columns.map((column, at) => (
          <Head key={column.head} column={column} order={order?.column === at ? order.down : null} turn={() => turn(at)} />
        ))}
      </tr>
    </thead>
  );
  const long = shown.length > WHOLE_ROWS;
  const body = { label, rows: shown, columns, id, tone, head };
  return long ? <Long {...body} /> : <Whole {...body} />;
}

interface HeadProps<T> { column: ColumnOf<T>; order: boolean | null; turn: () => void }
function Head<T>({ column, order, turn }: HeadProps<T>) {
  const sortWord = order === null ? undefined : order ? "descending" : "ascending";
  const cls = `${column.number ? "num" : ""} ${column.wide ? "wide" : ""}`;
  return (
    <th scope="col" role="columnheader" class={cls} aria-sort={sortWord}>
      {column.bare ? <span class="hidden">{column.head}</span>
        : column.by ? (
          <button type="button" class="head" onClick={turn}>
            {column.head}<span aria-hidden="true" class="arrow">{order === null ? "" : order ? " ↓" : " ↑"}</span>
          </button>
        ) : column.head}
    </th>
  );
}

interface BodyProps<T> extends Omit<Props<T>, "empty" | "sort"> { head: JSX.Element }

function Whole<T>({ label, rows, columns, id, tone, head }: BodyProps<T>) {
  return (
    <div class="table-box">
      <table class="cards" aria-label={label} role="table">
        {head}
        <tbody role="rowgroup">{rows.map((row) => <Row key={id(row)} row={row} columns={columns} tone={tone} />)}</tbody>
      </table>
    </div>
  );
}

function Long<T>({ label, rows, columns, id, tone, head }: BodyProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useLayoutEffect(() => {
    const at = box.current;
    if (!at) return;
    const sized = new ResizeObserver(() => setHeight(at.clientHeight));
    sized.observe(at);
    return () => sized.disconnect();
  }, []);
  const seen = windowOf(rows.length, ROW_HEIGHT, top, height);
  return (
    <div
      class="table-box long" ref={box} tabIndex={0} role="region" aria-label={`${label}, scrolls`}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <table aria-label={label} role="table" aria-rowcount={rows.length + 1}>
        {head}
        <tbody role="rowgroup">
          {seen.above > 0 && <Gap height={seen.above} width={columns.length} />}
          {rows.slice(seen.first, seen.last).map((row, at) => (
            <Row key={id(row)} row={row} columns={columns} tone={tone} number={seen.first + at + 2} />
          ))}
          {seen.below > 0 && <Gap height={seen.below} width={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

function Gap({ height, width }: { height: number; width: number }) {
  return <tr class="gap" aria-hidden="true"><td colSpan={width} style={{ height: `${height}px` }} /></tr>;
}

interface RowProps<T> { row: T; columns: ColumnOf<T>[]; tone?: (row: T) => string; number?: number }
function Row<T>({ row, columns, tone, number }: RowProps<T>) {
  return (
    <tr role="row" data-row class={tone?.(row)} aria-rowindex={number}>
      {columns.map((column) => (
        <td key={column.head} role="cell" data-head={column.bare ? "" : column.head} class={`${column.number ? "num" : ""} ${column.wide ? "wide" : ""} ${column.bare ? "acts" : ""}`}>
          <span class="cell">{column.cell(row)}</span>
        </td>
      ))}
    </tr>
  );
}
