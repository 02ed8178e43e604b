// The cache of sequences: what they hold of each cache kind, what they share, and what is evicted for them.

import type { PageCopies } from "../runtime/page_groups.js";
import type { CacheKind, Prefix } from "./cache_kind.js";
import { Pages, pageTables } from "./pages.js";
import { PrefixCache } from "./prefix_cache.js";
import type { SchedulerConfig } from "./scheduler.js";
import type { Sequence } from "./sequence.js";
import { States } from "./states.js";

/** The cache kinds of a model, and a prefix cache of all of them. */
export class KvCache {
  /** Those of each page group. */
  readonly pages: readonly Pages[];
  /** Null if the model has no recurrent layers. */
  readonly states: States | null;
  readonly kinds: readonly CacheKind[];
  readonly prefixes: PrefixCache;
  readonly #keepsStates: boolean;

  constructor(private readonly config: SchedulerConfig) {
    const { groups, pageSize, states = 0, maxSequences } = config;
    this.pages = groups.map((group, index) => new Pages(index, group, config));
    this.states = states === 0 ? null : new States(groups.length, states, maxSequences, pageSize);
    this.kinds = this.states === null ? this.pages : [...this.pages, this.states];
    this.prefixes = new PrefixCache(this.kinds, pageSize);
    this.#keepsStates = states > maxSequences;
  }

  /** The longest prefix of a waiting sequence's tokens that is already computed. */
  findPrefix({ keys, maxCached, adapterId, params }: Sequence): Prefix {
    return this.prefixes.find(keys, maxCached, adapterId, params.retained !== null);
  }

  /**
   * Whether there is room for a sequence's known tokens and one more, in addition to that which running sequences need
   * for the same.
   */
  fits({ tokens }: Sequence, prefix: Prefix, running: readonly Sequence[]): boolean {
    return this.kinds.every((kind) => {
      const others = running.reduce((sum, other) => sum + kind.growth(other, other.length + 1), 0);
      return others + kind.admission(prefix, tokens.length + 1) <= kind.free + kind.idle.size;
    });
  }

  /** Let a sequence start from a prefix. */
  start(sequence: Sequence, prefix: Prefix): void {
    sequence.tables = this.kinds.map((kind) => kind.table());
    this.#continue(sequence, prefix);
    if (sequence.lastStep < 0) sequence.cachedTokens = prefix.length;
  }

  /** Call before a row is scheduled: releases what is no longer read, and uses pages that others have filled meanwhile. */
  prepare(sequence: Sequence): void {
    const { computed, tokens, missing } = sequence;
    sequence.rewound = null;
    // After a stop token or a wrong draft, the sequence continues from its known tokens.
    for (const kind of this.kinds) kind.trim(sequence, Math.min(computed, tokens.length));
    if (missing === 1 || computed % this.config.pageSize > 0) return;
    const prefix = this.findPrefix(sequence);
    sequence.branch = prefix.known;
    const more = prefix.length - computed;
    if (more <= 0) return;
    this.#continue(sequence, prefix);
    if (sequence.generated === 0) sequence.cachedTokens += more;
  }

  /**
   * Let a sequence write its positions up to ``length``, evicting what is cached. False, and the sequence is unchanged,
   * if there is too little room.
   */
  reserve(sequence: Sequence, length: number): boolean {
    const { computed: start, length: known, params, prompt, branch } = sequence;
    // The last page of a conversation is continued, not copied, unless another one starts from it.
    if (params.retained?.isShared === false) this.#detach(sequence, start);
    while (this.kinds.some((kind) => kind.missing(sequence, start, length, known) > kind.free + kind.idle.size)) {
      if (!this.#detach(sequence, start, true)) return false;
    }
    for (const kind of this.kinds) {
      while (kind.missing(sequence, start, length, known) > kind.free) this.prefixes.evict(kind);
      kind.reserve(sequence, start, length, known);
    }
    if (this.#keepsStates && known === prompt.length && (start === branch || start === this.#border(known - 1)))
      this.#shareState(sequence, start);
    return true;
  }

  /**
   * Where a row that starts in the prompt ends instead of at ``end``, so that its state can be kept: where the tokens
   * leave those of other sequences in the cache, at the last page border of its pictures, from which another question
   * about them continues, or at the last page border before the next token is sampled.
   */
  rowEnd(sequence: Sequence, end: number): number {
    const { computed, branch, length, prompt } = sequence;
    if (!this.#keepsStates || end === computed + 1 || computed >= prompt.length) return end;
    const border = this.#border(end === length ? end - 1 : end);
    const earlier = [branch, this.#pictureBorder(sequence)].filter((each) => computed < each && each < border);
    return Math.min(border > computed ? border : end, ...earlier);
  }

  /** By kind, what the next step must copy first. */
  takeCopies(): PageCopies {
    return this.kinds.map((kind) => {
      const { copies } = kind;
      kind.copies = [];
      return copies;
    });
  }

  /** Let other sequences find the full pages of known tokens. */
  cachePages(sequence: Sequence): void {
    const full = Math.floor(Math.min(sequence.computed, sequence.tokens.length) / this.config.pageSize);
    if (full > sequence.path.length) this.prefixes.insert(sequence, full);
  }

  /** Take back the refused drafts that follow the first ``length`` tokens. */
  rewind(sequence: Sequence, length: number): void {
    if (length >= sequence.computed) return;
    const pages = pageTables(sequence)[0]?.pages ?? [];
    sequence.computed = Math.min(...this.kinds.map((kind) => kind.rewind(sequence, length)));
    const held = [...pages];
    for (const pool of this.pages) pool.rewind(sequence, sequence.computed);
    if (sequence.computed < length) sequence.rewound = held.slice(pages.length);
    // A page that is computed again is inserted again.
    sequence.path.splice(Math.floor(sequence.computed / this.config.pageSize));
  }

  /** Release what a sequence holds; the cache retains the full pages, and of a conversation the last page too. */
  release(sequence: Sequence): void {
    const { params, tokens, keys, computed, adapterId } = sequence;
    sequence.rewound = null;
    this.#settleState(sequence);
    // A state that has read more than the known tokens is of no use.
    if (params.retained !== null && (this.states === null || computed <= tokens.length))
      this.prefixes.insertPartial(sequence, computed);
    if (params.retained !== null)
      Object.assign(params.retained, { keys: keys.slice(0, computed), adapter: adapterId, isShared: false });
    this.prefixes.leave(sequence);
  }

  /** Release what a sequence holds, so that it is computed from its start. */
  restart(sequence: Sequence): void {
    this.prefixes.leave(sequence);
    sequence.computed = 0;
    sequence.rewound = null;
    if (sequence.generated === 0) sequence.cachedTokens = 0;
  }

  #continue(sequence: Sequence, prefix: Prefix): void {
    for (const kind of this.kinds) kind.restore(sequence, prefix);
    sequence.path = prefix.path.slice(0, Math.floor(prefix.length / this.config.pageSize));
    sequence.computed = prefix.length;
    sequence.branch = prefix.known;
  }

  /** Let other sequences find the state at the last border of a sequence that stops, and the last one if it is usable. */
  #settleState(sequence: Sequence): void {
    const { states } = this;
    const { computed, tokens, params } = sequence;
    if (states === null) return;
    this.#shareState(sequence, states.kept(sequence));
    const isLast = params.retained !== null && computed <= tokens.length;
    if (!isLast && computed !== this.#border(tokens.length)) return;
    while (!states.settle(sequence, computed) && states.idle.size > 0) this.prefixes.evict(states);
    this.#shareState(sequence, computed);
  }

  /** Let other sequences find the snapshot that a sequence has of the state at a page border of known tokens. */
  #shareState(sequence: Sequence, end: number): void {
    const node = sequence.path[end / this.config.pageSize - 1];
    if (node !== undefined) this.states?.share(sequence, node, end);
  }

  /** The last page border up to the end of the last picture; 0 without any. */
  #pictureBorder({ keys }: Sequence): number {
    return this.#border(keys.findLastIndex((key) => key < 0) + 1);
  }

  /** The last page border up to a position. */
  #border(position: number): number {
    return position - (position % this.config.pageSize);
  }

  /**
   * Remove the page of a position from the cache, so that the sequence can write to it without a copy; if others follow
   * it, nothing, or with ``evicts`` only what has been idle for longest. False if nothing was removed.
   */
  #detach(sequence: Sequence, position: number, evicts = false): boolean {
    const index = Math.floor(position / this.config.pageSize);
    const node = this.pages.map((pool) => pool.nodeOf(sequence, index)).find((each) => each !== undefined);
    const idle = this.pages.find((pool) => evicts && pool.idle.size > 0);
    if (node?.children.size === 0) this.prefixes.remove(node);
    else if (node !== undefined && idle !== undefined) this.prefixes.evict(idle);
    else return false;
    return true;
  }
}
