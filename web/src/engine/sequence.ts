// A sequence: the tokens of one request, the pages that hold their keys and values, and how far it has been computed.

import type { Adapter } from "./adapters.js";
import type { Node, Table } from "./cache_kind.js";
import type { FinishReason } from "./request.js";

export type SequenceState = "waiting" | "running" | "finished";

/**
 * Frees space in a full context: the older half of the tokens after the first ``keep`` is dropped, and the rest is
 * computed again.
 */
export interface ContextShift {
  readonly keep: number;
}

/**
 * A conversation between two answers. The prefix cache has the keys and values of its tokens, which it compares as
 * ``keys``, unless others needed the space; so the next answer needs no prefill for the conversation so far. ``adapter`` is the id of the adapter that
 * computed them. ``isShared``: another conversation starts from its last page, too.
 */
export interface RetainedSequence {
  keys: readonly number[];
  adapter: string;
  isShared: boolean;
}

/** A new conversation. */
export function newConversation(): RetainedSequence {
  return { keys: [], adapter: "", isShared: false };
}

/** A second conversation with the same tokens. */
export function forkOf(retained: RetainedSequence): RetainedSequence {
  retained.isShared = true;
  return { ...retained };
}

/** The images of a prompt. images.js places them. */
export interface PlacedImages {
  /** The tokens of the prompt as the prefix cache compares them: placeholders of different images differ. */
  readonly keys: readonly number[];
  /** The last position from ``start`` to ``stop`` before which a step may end. */
  end(start: number, stop: number): number;
  /** The features (n, E) of the positions from ``start`` until before ``stop``, the first position of each, and whether they are those of a sound. */
  between(
    start: number,
    stop: number,
  ): readonly (readonly [position: number, length: number, features: Float32Array, isSound: boolean])[];
  /** The positions (n, 3) by which tokens rotate, in models whose tokens have positions by row and column. */
  readonly ropePositions?: (start: number, stop: number) => readonly number[];
}

/** The parameters of a request that the scheduler needs. */
export interface SequenceParams {
  /** Infinity generates until the context is full. */
  readonly maxTokens: number;
  readonly stopTokenIds: ReadonlySet<number>;
  /** Null ends the answer when the context is full. */
  readonly contextShift: ContextShift | null;
  /**
   * The next token cannot be scheduled before the last one is read, because a constraint's mask or the drafts depend on
   * it.
   */
  readonly lockstep: boolean;
  /** How many tokens at the end of the prompt get a log-probability. */
  readonly promptLogprobs: number;
  /** The conversation that the sequence continues. */
  readonly retained: RetainedSequence | null;
  /** The LoRA adapter that computes the sequence. */
  readonly adapter?: Adapter | null;
  readonly images?: PlacedImages | null;
}

/** The parameters of a request without options. */
export const PLAIN: SequenceParams = {
  maxTokens: Infinity,
  stopTokenIds: new Set(),
  contextShift: null,
  lockstep: false,
  promptLogprobs: 0,
  retained: null,
};

export class Sequence {
  state: SequenceState = "waiting";
  finishReason: FinishReason | null = null;
  /** All known tokens: the prompt, then the tokens that have been read back from the device. */
  readonly tokens: number[];
  /** The same as the prefix cache compares them; without images, ``tokens``. */
  readonly keys: number[];
  /** What it holds of each cache kind, and the nodes of its full pages in the prefix cache. */
  tables: readonly Table[] = [];
  path: Node[] = [];
  /** Up to here, its tokens are those of other sequences in the cache. */
  branch = 0;
  /** Positions whose keys and values are in the pages, or will be once all open steps are done. */
  computed = 0;
  /**
   * Pages of known tokens that it gave back as drafts were refused, until its next row computes these again; null if it
   * gave back none. They follow its own pages, and hold what they held until the next step.
   */
  rewound: readonly number[] | null = null;
  /** Sampled tokens that have not been read back. */
  inFlight = 0;
  /** Tokens of the answer that have been read back. */
  generated = 0;
  /** Tokens of the prompt that were in a cache when the sequence started. */
  cachedTokens = 0;
  /** The slot that holds its sampled token, penalties, bias and mask on the device; -1 unless it is running. */
  slot = -1;
  /** The last step with rows of this sequence; -1 for none. */
  lastStep = -1;
  /** Its drafts that were checked, and those that were right. */
  drafted = 0;
  accepted = 0;
  /** The steps that sampled tokens of its answer. */
  passes = 0;
  /** Guesses at its next tokens; the next step checks them and clears the list. */
  drafts: readonly number[] = [];
  readonly promptLogprobs: PromptLogprobRows;

  constructor(
    /** Unique, and rising in the order of arrival. */
    readonly id: number,
    readonly prompt: readonly number[],
    readonly params: SequenceParams,
    readonly priority = 0,
  ) {
    this.tokens = [...prompt];
    this.keys = params.images ? [...params.images.keys] : this.tokens;
    this.promptLogprobs = new PromptLogprobRows(params.promptLogprobs);
  }

  /** Add a token of the answer that was read back. */
  append(tokenId: number): void {
    this.tokens.push(tokenId);
    if (this.keys !== this.tokens) this.keys.push(tokenId);
    this.generated++;
  }

  /** Tokens, including those in flight. */
  get length(): number {
    return this.tokens.length + this.inFlight;
  }

  /** Positions to compute before the next token can be sampled: 1 while it decodes. */
  get missing(): number {
    return this.length - this.computed;
  }

  /** The number of known tokens that may come from a cache. The logits of the other tokens are needed. */
  get maxCached(): number {
    return this.tokens.length - 1 - this.promptLogprobs.pending;
  }

  /** The id of its adapter: keys and values of another one cannot be used. */
  get adapterId(): string {
    return this.params.adapter?.id ?? "";
  }

  /** Whether more positions can be computed now. */
  isReady(context: number): boolean {
    const { maxTokens, lockstep } = this.params;
    return this.generated + this.inFlight < maxTokens && this.computed < context && !(lockstep && this.inFlight > 0);
  }

  /** How many drafts it can use once no token is in flight, at most ``most``. */
  useful(most: number, { context }: { readonly context: number }): number {
    const { missing, tokens, generated, params } = this;
    // After refused drafts, a model with states computes tokens again. A few of them leave room for further drafts.
    if (missing > (generated > 0 ? most : 1)) return 0;
    // One token comes without a guess.
    return Math.max(0, Math.min(most, context - tokens.length, params.maxTokens - generated - 1));
  }

  /** The first ``limit`` drafts, fewer near the end of the answer; the others are dropped. */
  takeDrafts(limit: number): readonly number[] {
    const drafts = this.drafts.slice(0, Math.max(0, Math.min(limit, this.params.maxTokens - this.generated - 1)));
    this.drafts = [];
    return drafts;
  }

  /** Whether all tokens are generated, or no position remains at which the last one could be computed. */
  isComplete(context: number): boolean {
    return (
      this.generated >= this.params.maxTokens || (this.tokens.length > context && this.params.contextShift === null)
    );
  }
}

/** Negative if ``a`` precedes ``b``: by priority, then by arrival. */
export function byRank(a: Sequence, b: Sequence): number {
  return b.priority - a.priority || a.id - b.id;
}

/** Negative if the prompt of ``a`` precedes that of ``b``: by priority, then by the last step with their rows. */
export function byTurn(a: Sequence, b: Sequence): number {
  return b.priority - a.priority || a.lastStep - b.lastStep || a.id - b.id;
}

/** Remove a sequence from a list, if it is there. */
export function remove(sequences: Sequence[], sequence: Sequence): void {
  const index = sequences.indexOf(sequence);
  if (index >= 0) sequences.splice(index, 1);
}

/** Insert a sequence into a list that is sorted by rank. */
export function insertByRank(sequences: Sequence[], sequence: Sequence): void {
  const index = sequences.findIndex((other) => byRank(sequence, other) < 0);
  sequences.splice(index < 0 ? sequences.length : index, 0, sequence);
}

/**
 * How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
 * read back.
 *
 * The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the row
 * that samples the first token of the answer. They never come from a cache, which holds keys and values but no logits.
 */
class PromptLogprobRows {
  scheduled = 0;

  constructor(public pending: number) {}

  schedule(rows: number): void {
    this.pending -= rows;
    this.scheduled += rows;
  }

  commit(rows: number): void {
    this.scheduled -= rows;
  }

  /** The scheduled rows will never be read back; schedule them again. */
  restart(): void {
    this.schedule(-this.scheduled);
  }
}
