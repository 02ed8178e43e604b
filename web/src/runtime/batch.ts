// A batch: S new tokens of B sequences, of which R rows are sampled. The engine makes it, the runner reads it.

import { RequestError } from "../errors.js";
import type { Dims } from "./expr.js";

/**
 * What a forward takes in, named as in the manifest's plan. token_ids, positions and slots (S,): each new token, its place in its sequence, and
 * where its key and value go (page * page_size + place); a token id below 0 is the token last sampled in sequence slot -1 - id.
 * seq_starts and page_indptr (B + 1,): where a sequence's rows and pages start; every sequence has at least one new token. page_ids (L,): all
 * sequences' pages. sample_rows (R,): the rows whose next token is wanted. sample_slots (R, 2), row by row: the sequence slot that keeps the token,
 * -1 for none, and which states of the slot apply, as SAMPLE_FLAGS added up; no two rows have the same slot. sample_settings (R, 8): how the token
 * is chosen, as `settingsRow` gives it.
 */
export interface Batch {
  readonly token_ids: readonly number[];
  readonly positions: readonly number[];
  readonly slots: readonly number[];
  readonly seq_starts: readonly number[];
  readonly page_indptr: readonly number[];
  readonly page_ids: readonly number[];
  readonly sample_rows: readonly number[];
  readonly sample_slots: readonly number[];
  readonly sample_settings: readonly number[];
}

/** A batch that is being built. */
export type OpenBatch = { readonly [Name in keyof Batch]: number[] };

export function emptyBatch(): OpenBatch {
  return {
    token_ids: [],
    positions: [],
    slots: [],
    seq_starts: [0],
    page_indptr: [0],
    page_ids: [],
    sample_rows: [],
    sample_slots: [],
    sample_settings: [],
  };
}

/** Which states of a row's sequence slot apply to it: token counts for the penalties, logit bias, token mask. */
export const SAMPLE_FLAGS = { counts: 1, bias: 2, mask: 4 } as const;

/** A token's count says in its low 16 bits how often the answer has it, and with this bit that the prompt has it. */
export const IN_PROMPT = 1 << 16;

/** How one row's token is chosen; compiler/ir/sampling.py says what each means. */
export interface SampleSettings {
  readonly temperature?: number | undefined;
  readonly topK?: number | undefined;
  readonly topP?: number | undefined;
  readonly minP?: number | undefined;
  /** The random number, in [0, 1). */
  readonly draw?: number | undefined;
  readonly repetitionPenalty?: number | undefined;
  readonly frequencyPenalty?: number | undefined;
  readonly presencePenalty?: number | undefined;
}

/** A row of sample_settings; what is not given is greedy and without penalty. */
export function settingsRow(settings: SampleSettings): readonly number[] {
  const {
    temperature = 0,
    topK = 0,
    topP = 1,
    minP = 0,
    draw = 0,
    repetitionPenalty = 1,
    frequencyPenalty = 0,
    presencePenalty = 0,
  } = settings;
  return [temperature, topK, topP, minP, draw, repetitionPenalty, frequencyPenalty, presencePenalty];
}

/** The dims of a batch on a runner of this capacity, ``alternatives`` being wanted or not. Throws RequestError for a sequence without a new token. */
export function dimsOf(batch: Batch, capacity: Dims, alternatives: boolean): Dims {
  // Kernels take S = B as one new token of every sequence.
  const empty = batch.seq_starts.findIndex((start, index) => start === batch.seq_starts[index + 1]);
  if (empty >= 0)
    throw new RequestError(`batch: sequence ${empty} has no new token; leave it out`, { sequence: empty });
  const rows = batch.sample_rows.length;
  const adjusted = batch.sample_slots.some((flags, index) => index % 2 === 1 && flags !== 0);
  return {
    ...capacity,
    S: batch.token_ids.length,
    B: batch.seq_starts.length - 1,
    R: rows,
    T: batch.positions.reduce((longest, position) => Math.max(longest, position + 1), 0),
    L: batch.page_ids.length,
    A: adjusted ? rows : 0,
    W: alternatives ? rows : 0,
  };
}
