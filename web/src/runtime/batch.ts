// A batch: S new tokens of B sequences, with R sampled rows. The engine builds it, and the runner executes it.

import { RequestError } from "../errors.js";
import { COLUMNS, SAMPLING } from "../shared/sampling.js";
import type { Dims } from "./expr.js";
import type { ModelSpec } from "./manifest.js";
import type { PagesByGroup } from "./page_groups.js";

/**
 * The inputs of a forward, named as in the manifest's plan. token_ids, positions and slots (S,): each new token, its
 * position in its sequence, and the slot for its key and value (page * page_size + offset in the page). A token id
 * below 0 is the token that was last sampled in sequence slot -1 - id. seq_starts and page_indptr (B + 1,): the indexes
 * at which a sequence's rows and pages start; every sequence has at least one new token. page_ids (L,): the pages of
 * all sequences. window_slots (S,), window_page_indptr (B + 1,) and window_page_ids (LW,): the same for the second page
 * group, if the model has one; the entry of a page behind the window is 0 and is not read. sample_rows (R,): the rows
 * whose next token is sampled. sample_slots (R, 2), row by row: the sequence slot that stores the token, -1 for none,
 * and the states of the slot that apply, as a sum of SAMPLE_FLAGS; no two rows have the same slot. sample_settings (R,
 * 8): how the token is chosen, as rows of `settingsRow`. adapters (S,): the slot of each new token's LoRA adapter, -1 for
 * none. token_types (S,): the type of each token of an encoder, 0 or 1. state_slots (B, 2): the slots from which the
 * states of a sequence's recurrent layers are read, and into which they are written. kept_rows (S,): for a model's own
 * heads, the slot of the row of the model's last layer that each token follows, or -1 - the slot of the heads' own row.
 * features (F, E) are those of pictures, and feature_rows (F,) the rows of the batch whose embeddings they replace. reach
 * (S,): the last position that each row sees if tokens see all of their picture; by default its own.
 * rope_positions (S, 3): the positions in time, rows and columns by which tokens rotate.
 * source_positions (S,): the last row of the sound that each token attends to; source_page_indptr (B + 1,) and
 * source_page_ids (LS,): the pages that hold its keys and values. For the plan "audio", source_slots (S,): those for the
 * keys and values of each row. For it and the plan "ctc", frames (S, elements): what it reads, and row_frames (S,): how
 * many frames that are.
 */
export interface Batch {
  readonly token_ids: readonly number[];
  readonly positions: readonly number[];
  readonly slots: readonly number[];
  readonly seq_starts: readonly number[];
  readonly page_indptr: readonly number[];
  readonly page_ids: readonly number[];
  readonly window_slots?: readonly number[];
  readonly window_page_indptr?: readonly number[];
  readonly window_page_ids?: readonly number[];
  readonly sample_rows: readonly number[];
  readonly sample_slots: readonly number[];
  readonly sample_settings: readonly number[];
  readonly adapters?: readonly number[];
  readonly token_types?: readonly number[];
  readonly state_slots?: readonly number[];
  readonly kept_rows?: readonly number[];
  readonly features?: Float32Array;
  readonly feature_rows?: readonly number[];
  readonly reach?: readonly number[];
  readonly rope_positions?: readonly number[];
  readonly source_positions?: readonly number[];
  readonly source_page_indptr?: readonly number[];
  readonly source_page_ids?: readonly number[];
  readonly source_slots?: readonly number[];
  readonly frames?: Float32Array;
  readonly row_frames?: readonly number[];
}

/**
 * The V patches of I complete tiles of pictures, one tile after the other: patches (V, elements), normalized;
 * patch_rows and patch_weights (V, taps), the rows of the tower's table of positions that each patch mixes, unused ones
 * with the weight 0; patch_starts (I + 1,), the first patch of each tile, then V; patch_positions (V, 2), the row and the
 * column of each patch in its tile. change_rows (C,) are the patches of two frames, of which patches are the mean, and
 * changes (C, elements) half of what the first frame has more than the second.
 */
export interface PatchBatch {
  readonly patches: Float32Array;
  readonly patch_rows: Int32Array;
  readonly patch_weights: Float32Array;
  readonly patch_starts: readonly number[];
  readonly patch_positions?: Int32Array;
  readonly changes?: Float32Array;
  readonly change_rows?: Int32Array;
}

/**
 * The sampled rows as sequences of one row each, for layers that compute only sampled rows: their positions (R,), where
 * each row starts (R + 1,), and the index of its sequence's first page in page_ids and window_page_ids (R + 1,).
 */
export interface SampledRows {
  readonly sample_positions: readonly number[];
  readonly sample_starts: readonly number[];
  readonly sample_page_indptr: readonly number[];
  readonly window_sample_page_indptr: readonly number[];
}

export const SAMPLED_INPUTS = [
  "sample_positions",
  "sample_starts",
  "sample_page_indptr",
  "window_sample_page_indptr",
] as const satisfies readonly (keyof SampledRows)[];

export type BatchInputs = Batch & SampledRows & PatchBatch;

/** The inputs that only sound and pictures have, those of many numbers last. */
export const MEDIA_INPUTS = [
  "reach",
  "source_positions",
  "source_page_indptr",
  "source_page_ids",
  "source_slots",
  "row_frames",
  "frames",
  "feature_rows",
  "features",
  "patch_starts",
  "patch_positions",
  "patch_rows",
  "patch_weights",
  "patches",
  "change_rows",
  "changes",
] as const satisfies readonly (keyof BatchInputs)[];

/** The numbers of a feature of pictures, with those for further layers of the text model. */
export function featureSize({ hidden_size, vision }: Pick<ModelSpec, "hidden_size" | "vision">): number {
  return hidden_size * (1 + (vision?.deepstack_layers.length ?? 0));
}

export function sampledRows(batch: Batch): SampledRows {
  const { sample_rows, positions, seq_starts } = batch;
  // The row's sequence is the first that ends after it.
  const sequences = sample_rows.map((row) => seq_starts.findIndex((start) => start > row) - 1);
  const firstPages = (indptr: readonly number[] = []): number[] => [
    ...sequences.map((sequence) => indptr[sequence] ?? 0),
    indptr.at(-1) ?? 0,
  ];
  return {
    sample_positions: sample_rows.map((row) => positions[row] ?? -1),
    sample_starts: [0, ...sample_rows.map((_, index) => index + 1)],
    sample_page_indptr: firstPages(batch.page_indptr),
    window_sample_page_indptr: firstPages(batch.window_page_indptr),
  };
}

/** A batch that is being built, without what pictures and sound add to it. */
export type OpenBatch = { readonly [Name in keyof Omit<Batch, (typeof MEDIA_INPUTS)[number]>]-?: number[] };

export function emptyBatch(): OpenBatch {
  return {
    token_ids: [],
    positions: [],
    slots: [],
    seq_starts: [0],
    page_indptr: [0],
    window_page_indptr: [0],
    page_ids: [],
    window_page_ids: [],
    window_slots: [],
    sample_rows: [],
    sample_slots: [],
    sample_settings: [],
    adapters: [],
    token_types: [],
    state_slots: [],
    kept_rows: [],
    rope_positions: [],
  };
}

/**
 * Append new tokens of a sequence to a batch: they follow ``start`` tokens in ``pages``, and are computed with the
 * adapter in the slot ``adapter``.
 */
export function addTokens(
  batch: OpenBatch,
  tokenIds: readonly number[],
  start: number,
  pages: PagesByGroup,
  pageSize: number,
  adapter = -1,
): void {
  const positions = tokenIds.map((_, index) => start + index);
  batch.token_ids.push(...tokenIds);
  batch.positions.push(...positions);
  batch.rope_positions.push(...positions.flatMap((own) => [own, own, own]));
  batch.adapters.push(...tokenIds.map(() => adapter));
  batch.token_types.push(...tokenIds.map(() => 0));
  batch.seq_starts.push(batch.token_ids.length);
  pages.forEach((table, group) => {
    const prefix = group === 0 ? "" : "window_";
    const ids = batch[`${prefix}page_ids`];
    ids.push(...table);
    batch[`${prefix}page_indptr`].push(ids.length);
    batch[`${prefix}slots`].push(
      ...positions.map((position) => (table[Math.floor(position / pageSize)] ?? -1) * pageSize + (position % pageSize)),
    );
  });
}

/** The states of a sequence slot that apply to a row: token counts for the penalties, logit bias, token mask. */
export const SAMPLE_FLAGS = { counts: 1, bias: 2, mask: 4 } as const;

/**
 * The low 16 bits of a token's count are its occurrences in the answer. This bit is set if the prompt contains the
 * token.
 */
export const IN_PROMPT = 1 << 16;

/** How the token of one row is chosen; compiler/ir/sampling.py defines each setting. The draw is in [0, 1). */
export type SettingsRow = Readonly<Record<(typeof COLUMNS)[number], number>>;
export type SampleSettings = { readonly [Name in keyof SettingsRow]?: number | undefined };

/** All settings: the defaults are greedy sampling without penalties, and the draw 0. */
export function settingsOf(settings: SampleSettings): SettingsRow {
  const defaultOf = (name: keyof SettingsRow): number => (name === "draw" ? 0 : SAMPLING[name].default);
  return Object.fromEntries(COLUMNS.map((name) => [name, settings[name] ?? defaultOf(name)])) as SettingsRow;
}

/** A row of sample_settings. */
export function settingsRow(settings: SampleSettings): readonly number[] {
  return Object.values(settingsOf(settings));
}

/**
 * The dims of a batch on a runner of this capacity; ``alternatives``: whether alternatives are requested. Throws
 * RequestError for a sequence without a new token.
 */
export function dimsOf(batch: Batch, capacity: Dims, alternatives: boolean): Dims {
  // For kernels, S = B means one new token for every sequence.
  const empty = batch.seq_starts.findIndex((start, index) => start === batch.seq_starts[index + 1]);
  if (empty >= 0)
    throw new RequestError(`batch: sequence ${empty} has no new token; leave it out`, { sequence: empty });
  const rows = batch.sample_rows.length;
  const adjusted = batch.sample_slots.some((flags, index) => index % 2 === 1 && flags !== 0);
  const drawn = batch.sample_settings.some((value, index) => index % COLUMNS.length === 0 && value > 0);
  return {
    ...capacity,
    S: batch.token_ids.length,
    B: batch.seq_starts.length - 1,
    R: rows,
    T: [...batch.positions, ...(batch.source_positions ?? [])].reduce(
      (longest, position) => Math.max(longest, position + 1),
      0,
    ),
    L: batch.page_ids.length,
    LW: batch.window_page_ids?.length ?? 0,
    LS: batch.source_page_ids?.length ?? 0,
    A: adjusted ? rows : 0,
    W: alternatives ? rows : 0,
    DR: drawn ? rows : 0,
    V: 0,
    I: 0,
    F: batch.feature_rows?.length ?? 0,
    C: 0,
    H: (capacity.H ?? 0) > 0 ? batch.token_ids.length : 0,
    G: batch.adapters?.some((slot) => slot >= 0) === true ? batch.token_ids.length : 0,
  };
}
