// What all measurements share: the page that they may write to, and the batches that they time.

import type { Batch } from "../runtime/batch.js";
import { settingsRow } from "../runtime/batch.js";
import type { Choices } from "../runtime/choices.js";
import type { PageGroup } from "../runtime/page_groups.js";
import { sequenceBatch } from "../runtime/sequence_batch.js";

/** Browsers round the clocks of the host and the device to this value. */
export const CLOCK_MS = 0.1;

export interface TuneOptions {
  readonly choices: Choices;
  /** A page of each group that no sequence uses during tuning; and last, a slot of a model's states. */
  readonly pages: readonly number[];
  /** Resolves when the device has no other work. */
  readonly idle: () => Promise<void>;
  readonly signal: AbortSignal;
}

/** A batch of the last tokens of a context. It reads the pages of the pools and writes only to ``own``. */
export function lastTokens(
  tokens: number,
  context: number,
  pageSize: number,
  groups: readonly PageGroup[],
  own: readonly number[],
  sample = true,
): Batch {
  const start = context - tokens;
  const firstWritten = Math.floor(start / pageSize);
  const tables = groups.map(({ pages }, group) =>
    Array.from({ length: Math.ceil(context / pageSize) }, (_, index) =>
      index < firstWritten ? index % pages : (own[group] ?? 0),
    ),
  );
  return sequenceBatch(new Array<number>(tokens).fill(0), start, tables, pageSize, sample, own[groups.length]);
}

/** A batch whose last rows are sampled, at most ``most`` of them: all, as those of drafts are, if a step may have so many. */
export function allSampled(batch: Batch, most: number): Batch {
  const rows = batch.token_ids.map((_, row) => row).slice(-most);
  return {
    ...batch,
    sample_rows: rows,
    sample_slots: rows.flatMap(() => [-1, 0]),
    sample_settings: rows.flatMap(() => [...settingsRow({})]),
  };
}
