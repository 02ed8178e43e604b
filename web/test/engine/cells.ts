// What pages and states hold while a scheduler's steps run, and the facts about them that must hold.

import type { Sequence } from "../../src/engine/sequence.js";
import type { Row } from "../../src/engine/step.js";
import { samplesAnswer } from "../../src/engine/step.js";
import type { PageCopies, PageGroup, PagesByGroup } from "../../src/runtime/page_groups.js";
import { VOCAB, hashOf, nextHash } from "./fake_model.js";

export interface TraceConfig {
  readonly page_size: number;
  readonly pages: number;
  readonly max_tokens: number;
  /** In turn, the budgets of steps; by default ``max_tokens``. */
  readonly budgets?: readonly number[] | undefined;
  readonly max_sequences: number;
  readonly max_rows?: number;
  readonly context: number;
  readonly depth: number;
  /** The window of the second group and the number of its pages, or without ``window_pages`` that of the only group. */
  readonly window?: number;
  readonly window_pages?: number;
  /** The slots for states of recurrent layers. */
  readonly states?: number;
}

export function groupsOf({ pages, window = Infinity, window_pages }: TraceConfig): readonly PageGroup[] {
  if (window_pages === undefined) return [{ pages, window }];
  return [
    { pages, window: Infinity },
    { pages: window_pages, window },
  ];
}

/** A row as it was when its step was built. */
export interface BuiltRow {
  readonly row: Row;
  readonly known: readonly number[];
  readonly tables: PagesByGroup;
  readonly state: readonly number[] | null;
}

/**
 * Pages that hold, for each position, the hash of all tokens up to it, and states that are such hashes. A step is computed
 * when it is committed, in order, as on a device. All rows of a step read their states before any row writes one.
 */
export class Cells {
  readonly #cells: readonly number[][];
  readonly #groups: readonly PageGroup[];
  // For each sequence, the tokens whose positions have been computed.
  readonly #tokens = new Map<Sequence, number[]>();
  readonly #sampled = new Map<Sequence, number>();
  // By slot, the hash and the number of its tokens.
  readonly #states = new Map<number, readonly [hash: number, count: number]>();

  constructor(private readonly config: TraceConfig) {
    this.#groups = groupsOf(config);
    this.#cells = this.#groups.map(({ pages }) => new Array<number>(pages * config.page_size).fill(-1));
  }

  run(copies: PageCopies, rows: readonly BuiltRow[]): number[] {
    const { page_size } = this.config;
    copies.forEach((pairs, group) => {
      for (const [from, to] of pairs)
        this.#cells[group]?.copyWithin(to * page_size, from * page_size, (from + 1) * page_size);
    });
    const before = new Map(this.#states);
    return rows.flatMap((built) => {
      const { sequence, start, length, promptLogprobs, drafts } = built.row;
      const tokens = this.#tokens.get(sequence) ?? [];
      this.#tokens.set(sequence, tokens);
      built.known.forEach((token, position) => (tokens[position] = token));
      const end = start + length;
      tokens.length = end;
      tokens[end - 1] ??= this.#sampled.get(sequence) ?? -1;
      this.#compute(built, tokens);
      this.#fold(built, tokens, before);
      // The tokens of the prompt's rows must not become tokens of the answer.
      const unused = new Array<number>(promptLogprobs).fill(-1);
      if (!samplesAnswer(built.row)) return unused;
      const sampled = [...drafts, -1].map((_, index) => hashOf(tokens.slice(0, end - drafts.length + index)) % VOCAB);
      if (drafts.length === 0) this.#sampled.set(sequence, sampled[0] ?? -1);
      return [...unused, ...sampled];
    });
  }

  /** Continue the state that a row reads, if there are states. */
  #fold(
    { row: { start }, state }: BuiltRow,
    tokens: readonly number[],
    before: ReadonlyMap<number, readonly [number, number]>,
  ): void {
    if (state === null) return;
    const [read = -1, write = -1] = state;
    const [hash, count] = start === 0 ? [0, 0] : (before.get(read) ?? [-1, -1]);
    requireThat(count === start, `slot ${read} has the state after ${start} tokens, not ${count}`);
    requireThat(hash === hashOf(tokens.slice(0, start)), `slot ${read} has the state of other tokens`);
    this.#states.set(write, [tokens.slice(start).reduce(nextHash, hash), tokens.length]);
  }

  /** Write the positions of a row, and check that the pages hold all positions that each of them attends to. */
  #compute({ row: { start }, tables }: BuiltRow, tokens: readonly number[]): void {
    let hash = 0;
    const hashes = tokens.map((token) => (hash = nextHash(hash, token)));
    this.#groups.forEach(({ window }, group) => {
      const cells = this.#cells[group] ?? [];
      const cell = (position: number): number => {
        const { page_size } = this.config;
        return (tables[group]?.[Math.floor(position / page_size)] ?? -1) * page_size + (position % page_size);
      };
      for (let position = start; position < tokens.length; position++) cells[cell(position)] = hashes[position] ?? -1;
      const first = Math.max(0, start - window + 1);
      for (let position = first; position < tokens.length; position++)
        requireThat(cells[cell(position)] === hashes[position], `group ${group} holds position ${position}`);
    });
  }
}

export function requireThat(holds: boolean, fact: string): void {
  if (!holds) throw new Error(`it does not hold that ${fact}`);
}
