// Page groups: the layers that share page tables, and the pools of their pages.
//
// A model whose layers all see the whole context has one group, and so has a model whose layers all have a window. A
// model with both has two: first its full layers, then its window layers. Layers with windows need only the pages
// within the largest of their windows.

import type { Manifest } from "./manifest.js";
import { planOf } from "./plan.js";

/**
 * A pool of ``pages``. ``window``: the number of tokens that a token sees in these layers, itself included; Infinity
 * for all tokens.
 */
export interface PageGroup {
  readonly pages: number;
  readonly window: number;
}

/** For each group, pages in the order of the positions they hold; and last, the slots of a model's states. */
export type PagesByGroup = readonly (readonly number[])[];

/** For each group, the pages to copy. */
export type PageCopies = readonly (readonly (readonly [from: number, to: number])[])[];

/** The dims of the pages of each group. */
export const PAGE_DIMS: readonly string[] = ["P", "PW"];

/** The dims of pages that a model's own heads need beside those of the first group: their rows, and the heads' own. */
export const HEAD_DIMS: readonly string[] = ["PH", "PD"];

/** The dim of the slots for states of recurrent layers. */
export const STATE_DIM = "Z";

type Windowed = Pick<PageGroup, "window">;

/** The values that determine the pages of a sequence. */
export interface SequenceSizes {
  readonly context: number;
  readonly pageSize: number;
  /** The maximum number of new tokens in a step. */
  readonly maxTokens: number;
}

/**
 * The most pages that one sequence holds in a group: those of a full context, or those of the window, of the new tokens
 * of a step, and of the partly filled pages at both ends.
 */
export function pagesOfSequence({ window }: Windowed, { context, pageSize, maxTokens }: SequenceSizes): number {
  return Math.min(Math.ceil(context / pageSize), Math.ceil(window / pageSize) + Math.ceil(maxTokens / pageSize) + 2);
}

/**
 * The groups of a manifest. By default the first one has enough pages for a full context, or if it has a window, for
 * ``maxSequences``; and one that tuning may borrow. ``pages`` replaces this number.
 */
export function pageGroups(
  { spec, ...manifest }: Manifest,
  sizes: SequenceSizes,
  maxSequences: number,
  pages: number | undefined,
): readonly PageGroup[] {
  const { context, pageSize } = sizes;
  const windows = spec.windows.flatMap((window) => (window !== null && window < context ? [window] : []));
  const group = (window: number, most: number): PageGroup => ({
    pages: Math.min(most, maxSequences * pagesOfSequence({ window }, sizes) + 1),
    window,
  });
  const hasTwo = planOf(manifest).inputs.window_page_ids !== undefined;
  const largest = Math.max(...windows);
  const isFull = hasTwo || windows.length === 0 || windows.length < spec.windows.length;
  const first = group(isFull ? Infinity : largest, Math.ceil(context / pageSize) + 1);
  const main = { ...first, pages: pages ?? first.pages };
  // No sequence holds more pages of the second group than of the first one.
  return hasTwo ? [main, group(largest, main.pages)] : [main];
}
