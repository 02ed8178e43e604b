// The KV cache for sequences: the pages that each sequence holds, and the pages that it shares with others.

import { KeptSequence } from "./kept_sequence.js";
import { PagePool } from "./page_pool.js";
import { PrefixCache } from "./prefix_cache.js";
import type { Sequence } from "./sequence.js";

/**
 * The first ``length`` tokens of a sequence are already computed, in ``pages`` of the prefix cache (``cached``) or of
 * its kept sequence.
 */
export interface Prefix {
  readonly length: number;
  readonly pages: readonly number[];
  readonly cached: boolean;
}

/** A page pool, a prefix cache and kept sequences, with the rules for sharing, copying and evicting their pages. */
export class KvCache {
  readonly pool: PagePool;
  readonly prefixes: PrefixCache;
  // Least recently used first.
  readonly #kept = new Set<KeptSequence>();

  constructor(
    numPages: number,
    readonly pageSize: number,
  ) {
    this.pool = new PagePool(numPages);
    this.prefixes = new PrefixCache(this.pool, pageSize);
  }

  /** A kept sequence for a new conversation, or for a fork of the conversation ``from``. */
  keep(from?: KeptSequence): KeptSequence {
    const kept = from?.clone() ?? new KeptSequence(this.pool);
    this.#kept.add(kept);
    return kept;
  }

  /** The conversation is over. */
  forget(kept: KeptSequence): void {
    kept.drop();
    this.#kept.delete(kept);
  }

  pagesFor(numTokens: number): number {
    return Math.ceil(numTokens / this.pageSize);
  }

  /** The longest prefix of a waiting sequence's tokens that is already computed. */
  findPrefix({ tokens, params, maxCached }: Sequence): Prefix {
    const pages = this.prefixes.match(tokens, Math.floor(maxCached / this.pageSize));
    const length = pages.length * this.pageSize;
    const kept = Math.min(commonLength(tokens, params.kept?.tokens ?? []), maxCached);
    if (kept <= length) return { length, pages, cached: true };
    return { length: kept, pages: params.kept?.pages.slice(0, this.pagesFor(kept)) ?? [], cached: false };
  }

  /**
   * Whether there are enough pages for a sequence's known tokens and one more token, in addition to the pages that
   * running sequences need for the same. Evicts kept sequences.
   */
  fits({ tokens, params }: Sequence, { pages, cached }: Prefix, running: readonly Sequence[]): boolean {
    const promised = running.reduce(
      (sum, other) => sum + Math.max(0, this.pagesFor(other.length + 1) - other.pages.length),
      0,
    );
    // Its prefix must not be evicted.
    const idle = cached ? pages.filter((page) => this.pool.users(page) === 1).length : 0;
    const needed = promised + this.pagesFor(tokens.length + 1) - pages.length + idle;
    while (needed > this.pool.free + this.prefixes.evictable) {
      if (!this.#evictKept(params.kept)) return false;
    }
    return true;
  }

  /** Let a sequence start from a prefix. */
  start(sequence: Sequence, { length, pages, cached }: Prefix): void {
    const { kept } = sequence.params;
    if (cached) {
      for (const page of pages) this.pool.share(page);
      // When the sequence ends, it will retain more pages than these.
      kept?.drop();
    } else {
      kept?.take(pages.length);
    }
    sequence.pages.push(...pages);
    sequence.computed = length;
    if (sequence.lastStep < 0) sequence.cachedTokens = length;
  }

  /**
   * Call before a row is scheduled. Uses pages that other sequences have filled meanwhile, and copies a shared page
   * before the sequence writes to it.
   */
  prepare(sequence: Sequence, copies: [number, number][]): void {
    const index = Math.floor(sequence.computed / this.pageSize);
    const page = sequence.pages[index];
    if (page === undefined) {
      if (sequence.missing > 1) this.#extendPrefix(sequence);
    } else if (this.pool.users(page) > 1) {
      this.#makeWritable(sequence, index, copies);
    }
  }

  /** Allocate pages for the first ``length`` positions, evicting cached and kept pages. False if there are too few. */
  reserve({ pages }: Sequence, length: number): boolean {
    const more = this.allocate(this.pagesFor(length) - pages.length);
    if (more !== null) pages.push(...more);
    return more !== null;
  }

  /**
   * Allocate ``count`` pages, or none if it is negative. Null if there are too few pages outside of running sequences.
   */
  allocate(count: number): number[] | null {
    while (this.pool.free < count) {
      if (!this.prefixes.evict() && !this.#evictKept()) return null;
    }
    return Array.from({ length: count }, () => this.pool.allocate());
  }

  /** Add the full pages of known tokens to the prefix cache. */
  cachePages({ cachePosition, tokens, pages, computed }: Sequence): void {
    this.prefixes.insert(cachePosition, tokens, pages, Math.floor(Math.min(computed, tokens.length) / this.pageSize));
  }

  /** Pass the pages of a finished sequence to its conversation, unless the conversation is over. */
  retain({ params: { kept }, tokens, pages, computed }: Sequence): void {
    if (kept === null || !this.#kept.delete(kept)) return;
    this.#kept.add(kept);
    const known = Math.min(computed, tokens.length);
    kept.put(tokens.slice(0, known), pages.splice(0, this.pagesFor(known)));
  }

  /** Release a sequence's pages; the cache retains the full ones. */
  release({ cachePosition, pages }: Sequence): void {
    this.prefixes.leave(cachePosition);
    for (const page of pages.splice(0)) this.pool.release(page);
  }

  /** Release a sequence's pages because its tokens have changed. */
  restart(sequence: Sequence): void {
    this.release(sequence);
    sequence.computed = 0;
  }

  /** Remove everything that no sequence holds, as after the loss of the device. */
  clear(): void {
    this.prefixes.clear();
    while (this.#evictKept());
  }

  /** Release the pages of the least recently used conversation other than ``except``. False if there is none. */
  #evictKept(except: KeptSequence | null = null): boolean {
    for (const kept of this.#kept) {
      if (kept.pages.length === 0 || kept === except) continue;
      kept.drop();
      return true;
    }
    return false;
  }

  /** Copy on write. Without a free page, the positions of the shared page are computed again. */
  #makeWritable(sequence: Sequence, index: number, copies: [number, number][]): void {
    const { pages } = sequence;
    const shared = pages[index] ?? -1;
    if (this.pool.free > 0 || this.prefixes.evict()) {
      const own = this.pool.allocate();
      copies.push([shared, own]);
      pages[index] = own;
    } else {
      pages.length = index;
      sequence.computed = index * this.pageSize;
    }
    this.pool.release(shared);
  }

  /** Continue with full pages that another sequence with the same prefix has filled. */
  #extendPrefix(sequence: Sequence): void {
    const { pages, tokens, maxCached } = sequence;
    const filled = this.prefixes.match(tokens, Math.floor(maxCached / this.pageSize)).slice(pages.length);
    for (const page of filled) this.pool.share(page);
    pages.push(...filled);
    sequence.computed += filled.length * this.pageSize;
    if (sequence.generated === 0) sequence.cachedTokens += filled.length * this.pageSize;
  }
}

function commonLength(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length);
  for (let index = 0; index < length; index++) {
    if (a[index] !== b[index]) return index;
  }
  return length;
}
