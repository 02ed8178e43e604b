// Which rows of a window of sound an encoder reads if it has read one before that began in the same way, as in partial
// transcripts of what is still being said.

import type { ReceptiveField } from "../../runtime/manifest.js";

/** The window that was read has ``before`` rows, the next one ``rows``, of which the first ``same`` read the same sound. */
export interface Windows {
  readonly before: number;
  readonly rows: number;
  readonly same: number;
  /** The rows that have a place in memory. */
  readonly room: number;
}

/** Rows are read from ``first`` on, and of these the results from row ``kept`` on replace those of before. */
export interface RowsToRead {
  readonly first: number;
  readonly kept: number;
}

/**
 * The last rows of what was read change with the sound behind them, so those whose receptive field ends before that are
 * kept. The rows that are new have theirs before them. Results of rows before ``kept`` are wrong, as what lies before
 * ``first`` is missing, and take a place behind the window.
 */
export function rowsToRead(field: ReceptiveField, { before, rows, same, room }: Windows): RowsToRead {
  if (rows >= room) return { first: 0, kept: 0 };
  if (same === rows && rows === before) return { first: rows, kept: rows };
  const kept = Math.max(0, same - field.ahead);
  const first = Math.max(0, kept - field.back);
  return first === 0 ? { first, kept: 0 } : { first, kept };
}
