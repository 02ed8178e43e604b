// The cache of sequences: what they hold of each cache kind, what they share, and what is evicted for them.

import type { PageCopies } from "../runtime/page_groups.js";
import type { CacheKind, Prefix } from "./cache_kind.js";
import { PageTable, Pages } from "./cache_kind.js";
import { PrefixCache } from "./prefix_cache.js";
import type { SchedulerConfig } from "./scheduler.js";
import type { Sequence } from "./sequence.js";

/** The cache kinds of a model, and a prefix cache of all of them. */
export class KvCache {
  readonly kinds: readonly CacheKind[];
  readonly prefixes: PrefixCache;

  constructor(private readonly config: SchedulerConfig) {
    const { groups, pageSize } = config;
    this.kinds = groups.map((group, index) => new Pages(index, group, config));
    this.prefixes = new PrefixCache(this.kinds, pageSize);
  }

  /** The longest prefix of a waiting sequence's tokens that is already computed. */
  findPrefix({ tokens, maxCached, adapterId, params }: Sequence): Prefix {
    return this.prefixes.find(tokens, maxCached, adapterId, params.retained !== null);
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
    sequence.tables = this.kinds.map(() => new PageTable());
    this.#continue(sequence, prefix);
    if (sequence.lastStep < 0) sequence.cachedTokens = prefix.length;
  }

  /** Call before a row is scheduled: releases what is no longer read, and uses pages that others have filled meanwhile. */
  prepare(sequence: Sequence): void {
    const { computed, tokens, missing } = sequence;
    // If a stop token is read, the sequence is continued from its known tokens.
    for (const kind of this.kinds) kind.trim(sequence, Math.min(computed, tokens.length));
    if (missing === 1 || computed % this.config.pageSize > 0) return;
    const prefix = this.findPrefix(sequence);
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
    const { computed: start, params } = sequence;
    // The last page of a conversation is continued, not copied, unless another one starts from it.
    if (params.retained?.isShared === false) this.#detach(sequence, start);
    while (this.kinds.some((kind) => kind.missing(sequence, start, length) > kind.free + kind.idle.size)) {
      if (!this.#detach(sequence, start, true)) return false;
    }
    for (const kind of this.kinds) {
      while (kind.missing(sequence, start, length) > kind.free) this.prefixes.evict(kind);
      kind.reserve(sequence, start, length);
    }
    return true;
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

  /** Release what a sequence holds; the cache retains the full pages, and of a conversation the last page too. */
  release(sequence: Sequence): void {
    const { params, tokens, computed, adapterId } = sequence;
    if (params.retained !== null) {
      this.prefixes.insertPartial(sequence, computed);
      Object.assign(params.retained, { tokens: tokens.slice(0, computed), adapter: adapterId, isShared: false });
    }
    this.prefixes.leave(sequence);
  }

  /** Release what a sequence holds, so that it is computed from its start. */
  restart(sequence: Sequence): void {
    this.prefixes.leave(sequence);
    sequence.computed = 0;
    if (sequence.generated === 0) sequence.cachedTokens = 0;
  }

  #continue(sequence: Sequence, prefix: Prefix): void {
    for (const kind of this.kinds) kind.restore(sequence, prefix);
    sequence.path = prefix.path.slice(0, Math.floor(prefix.length / this.config.pageSize));
    sequence.computed = prefix.length;
  }

  /**
   * Remove the page of a position from the cache, so that the sequence can write to it without a copy; if others follow
   * it, nothing, or with ``evicts`` only what has been idle for longest. False if nothing was removed.
   */
  #detach(sequence: Sequence, position: number, evicts = false): boolean {
    const index = Math.floor(position / this.config.pageSize);
    const node = this.kinds.map((kind) => kind.nodeOf(sequence, index)).find((each) => each !== undefined);
    const idle = this.kinds.find((kind) => evicts && kind.idle.size > 0);
    if (node?.children.size === 0) this.prefixes.remove(node);
    else if (node !== undefined && idle !== undefined) this.prefixes.evict(idle);
    else return false;
    return true;
  }
}
