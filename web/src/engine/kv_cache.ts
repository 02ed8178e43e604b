// The KV cache for sequences: the pages that each sequence holds, and the pages that it shares with others.

import { RetainedSequence } from "./retained_sequence.js";
import { PagePool } from "./page_pool.js";
import { PrefixCache } from "./prefix_cache.js";
import type { Sequence } from "./sequence.js";

/**
 * The first ``length`` tokens of a sequence are already computed, in ``pages`` of the prefix cache (``cached``) or of
 * its retained sequence.
 */
export interface Prefix {
  readonly length: number;
  readonly pages: readonly number[];
  readonly cached: boolean;
}

/** A page pool, a prefix cache and retained sequences, with the rules for sharing, copying and evicting their pages. */
export class KvCache {
  readonly pool: PagePool;
  readonly prefixes: PrefixCache;
  // Least recently used first.
  readonly #retained = new Set<RetainedSequence>();

  constructor(
    numPages: number,
    readonly pageSize: number,
  ) {
    this.pool = new PagePool(numPages);
    this.prefixes = new PrefixCache(this.pool, pageSize);
  }

  /** A retained sequence for a new conversation, or for a fork of the conversation ``from``. */
  retainedSequence(from?: RetainedSequence): RetainedSequence {
    const retained = from?.clone() ?? new RetainedSequence(this.pool);
    this.#retained.add(retained);
    return retained;
  }

  /** The conversation is over. */
  forget(retained: RetainedSequence): void {
    retained.drop();
    this.#retained.delete(retained);
  }

  pagesFor(numTokens: number): number {
    return Math.ceil(numTokens / this.pageSize);
  }

  /** The longest prefix of a waiting sequence's tokens that is already computed. */
  findPrefix({ tokens, params, maxCached }: Sequence): Prefix {
    const pages = this.prefixes.match(tokens, Math.floor(maxCached / this.pageSize));
    const length = pages.length * this.pageSize;
    const { retained } = params;
    const longer = Math.min(commonLength(tokens, retained?.tokens ?? []), maxCached);
    if (longer <= length) return { length, pages, cached: true };
    return { length: longer, pages: retained?.pages.slice(0, this.pagesFor(longer)) ?? [], cached: false };
  }

  /**
   * Whether there are enough pages for a sequence's known tokens and one more token, in addition to the pages that
   * running sequences need for the same. Evicts retained sequences.
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
      if (!this.#evictRetained(params.retained)) return false;
    }
    return true;
  }

  /** Let a sequence start from a prefix. */
  start(sequence: Sequence, { length, pages, cached }: Prefix): void {
    const { retained } = sequence.params;
    if (cached) {
      for (const page of pages) this.pool.share(page);
      // When the sequence ends, it will retain more pages than these.
      retained?.drop();
    } else {
      retained?.detach(pages.length);
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

  /**
   * Allocate pages for the first ``length`` positions, evicting cached and retained pages. False if there are too few.
   */
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
      if (!this.prefixes.evict() && !this.#evictRetained()) return null;
    }
    return Array.from({ length: count }, () => this.pool.allocate());
  }

  /** Add the full pages of known tokens to the prefix cache. */
  cachePages({ cachePosition, tokens, pages, computed }: Sequence): void {
    this.prefixes.insert(cachePosition, tokens, pages, Math.floor(Math.min(computed, tokens.length) / this.pageSize));
  }

  /** Pass the pages of a finished sequence to its conversation, unless the conversation is over. */
  retain({ params: { retained }, tokens, pages, computed }: Sequence): void {
    if (retained === null || !this.#retained.delete(retained)) return;
    this.#retained.add(retained);
    const known = Math.min(computed, tokens.length);
    retained.put(tokens.slice(0, known), pages.splice(0, this.pagesFor(known)));
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
    while (this.#evictRetained());
  }

  /** Release the pages of the least recently used conversation other than ``except``. False if there is none. */
  #evictRetained(except: RetainedSequence | null = null): boolean {
    for (const retained of this.#retained) {
      if (retained.pages.length === 0 || retained === except) continue;
      retained.drop();
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
