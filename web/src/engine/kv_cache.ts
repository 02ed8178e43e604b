// The KV cache for sequences: the pages that each sequence holds, and the pages that it shares with others.

import type { PagesByGroup } from "../runtime/page_groups.js";
import { pagesOfSequence } from "../runtime/page_groups.js";
import { PagePool } from "./page_pool.js";
import { PageTable } from "./page_table.js";
import { PrefixCache } from "./prefix_cache.js";
import { RetainedSequence } from "./retained_sequence.js";
import type { SchedulerConfig } from "./scheduler.js";
import type { Sequence } from "./sequence.js";

/**
 * The first ``length`` tokens of a sequence are already computed: by group, in ``pages`` of the prefix cache, 0 for
 * those behind the window; or if ``pages`` is null, in the pages of its retained sequence.
 */
export interface Prefix {
  readonly length: number;
  readonly pages: PagesByGroup | null;
}

/**
 * A page pool for each group, a prefix cache and retained sequences, with the rules for sharing, copying and evicting
 * their pages.
 */
export class KvCache {
  readonly pools: readonly PagePool[];
  readonly prefixes: PrefixCache;
  // Least recently used first.
  readonly #retained = new Set<RetainedSequence>();

  constructor(private readonly config: SchedulerConfig) {
    const { groups, pageSize } = config;
    this.pools = groups.map((group) => new PagePool(group, pageSize));
    this.prefixes = new PrefixCache(this.pools, pageSize);
  }

  /** A retained sequence for a new conversation, or for a fork of the conversation ``from``. */
  retainedSequence(from?: RetainedSequence): RetainedSequence {
    const retained = from?.clone() ?? new RetainedSequence();
    this.#retained.add(retained);
    return retained;
  }

  /** The conversation is over. */
  forget(retained: RetainedSequence): void {
    retained.drop();
    this.#retained.delete(retained);
  }

  pagesFor(numTokens: number): number {
    return Math.ceil(numTokens / this.config.pageSize);
  }

  /** The longest prefix of a waiting sequence's tokens that is already computed. */
  findPrefix(sequence: Sequence): Prefix {
    const pages = this.#match(sequence);
    const length = (pages[0]?.length ?? 0) * this.config.pageSize;
    const { tokens, params, maxCached } = sequence;
    const { retained } = params;
    const retainedTokens = retained?.adapter === sequence.adapterId ? retained.tokens : [];
    const longer = Math.min(commonLength(tokens, retainedTokens), maxCached);
    const lacks = retained?.tables.some(({ pool, dead }) => dead > pool.deadPages(longer));
    return longer <= length || lacks === true ? { length, pages } : { length: longer, pages: null };
  }

  /**
   * Whether there are enough pages for a sequence's known tokens and one more token, in addition to the pages that
   * running sequences need for the same. Evicts retained sequences.
   */
  fits({ tokens, params }: Sequence, prefix: Prefix, running: readonly Sequence[]): boolean {
    return this.pools.every((pool, group) => {
      let needed = 0;
      const add = (held: number, dead: number, length: number): void => {
        const most = Math.min(this.pagesFor(length + 1) - dead, pagesOfSequence(pool, this.config));
        needed += Math.max(0, most - held + dead);
      };
      for (const { tables, length } of running) add(tables[group]?.pages.length ?? 0, tables[group]?.dead ?? 0, length);
      const dead = pool.deadPages(prefix.length);
      add(this.pagesFor(prefix.length), dead, tokens.length);
      // The prefix must not be evicted.
      const idle = (prefix.pages?.[group] ?? []).slice(dead).filter((page) => pool.users(page) === 1).length;
      while (needed + idle > pool.free + this.prefixes.evictable(group)) {
        if (!this.#evictRetained(params.retained)) return false;
      }
      return true;
    });
  }

  /** Let a sequence start from a prefix. */
  start(sequence: Sequence, { length, pages }: Prefix): void {
    const { retained } = sequence.params;
    if (pages === null) {
      sequence.tables = retained?.detach(this.pagesFor(length)) ?? [];
    } else {
      sequence.tables = this.pools.map((pool) => new PageTable(pool));
      this.#extend(sequence, pages);
      // When the sequence ends, it will retain more pages than these.
      retained?.drop();
    }
    sequence.computed = length;
    if (sequence.lastStep < 0) sequence.cachedTokens = length;
  }

  /**
   * Call before a row is scheduled. Gives back the pages behind the window, uses pages that other sequences have filled
   * meanwhile, and copies a shared page before the sequence writes to it.
   */
  prepare(sequence: Sequence, copies: [number, number][][]): void {
    const { tables, computed, tokens, missing } = sequence;
    // If a stop token is read, the sequence is continued from its known tokens.
    for (const table of tables) table.giveBack(table.pool.deadPages(Math.min(computed, tokens.length)));
    const index = Math.floor(computed / this.config.pageSize);
    if (index < (tables[0]?.pages.length ?? 0)) this.#makeWritable(sequence, index, copies);
    else if (missing > 1) this.#extendPrefix(sequence);
  }

  /**
   * Allocate pages for the first ``length`` positions, evicting cached and retained pages. False if there are too few.
   */
  reserve({ tables }: Sequence, length: number): boolean {
    const more = this.allocate(tables.map(({ pages }) => this.pagesFor(length) - pages.length));
    tables.forEach(({ pages }, group) => pages.push(...(more?.[group] ?? [])));
    return more !== null;
  }

  /**
   * Allocate this number of pages of each group, or none if it is negative. Null if there are too few pages outside of
   * running sequences.
   */
  allocate(counts: readonly number[]): PagesByGroup | null {
    for (const [group, pool] of this.pools.entries()) {
      while (pool.free < (counts[group] ?? 0)) {
        if (!this.prefixes.evict(group) && !this.#evictRetained()) return null;
      }
    }
    return this.pools.map((pool, group) => Array.from({ length: counts[group] ?? 0 }, () => pool.allocate()));
  }

  /**
   * New tables of ``count`` pages, without the first ``dead`` of each group. Null if there are too few pages outside of
   * running sequences.
   */
  tables(count: number, dead: readonly number[]): readonly PageTable[] | null {
    const live = this.allocate(dead.map((first) => count - first));
    return live && this.pools.map((pool, group) => new PageTable(pool, live[group], dead[group]));
  }

  /** Add the full pages of known tokens to the prefix cache. */
  cachePages({ cachePosition, tokens, tables, computed, adapterId }: Sequence): void {
    const full = Math.floor(Math.min(computed, tokens.length) / this.config.pageSize);
    this.prefixes.insert(cachePosition, tokens, tables, full, adapterId);
  }

  /** Pass the pages of a finished sequence to its conversation, unless the conversation is over. */
  retain(sequence: Sequence): void {
    const { params, tokens, tables, computed } = sequence;
    const { retained } = params;
    if (retained === null || !this.#retained.delete(retained)) return;
    this.#retained.add(retained);
    const known = Math.min(computed, tokens.length);
    for (const table of tables) table.truncate(this.pagesFor(known));
    retained.put(tokens.slice(0, known), tables, sequence.adapterId);
    sequence.tables = [];
  }

  /** Release a sequence's pages; the cache retains the full ones. */
  release({ cachePosition, tables }: Sequence): void {
    this.prefixes.leave(cachePosition);
    for (const table of tables) table.truncate(0);
  }

  /** Release a sequence's pages, so that it is computed from its start. */
  restart(sequence: Sequence): void {
    this.release(sequence);
    sequence.computed = 0;
    if (sequence.generated === 0) sequence.cachedTokens = 0;
  }

  /** Remove everything that no sequence holds, as after the loss of the device. */
  clear(): void {
    this.prefixes.clear();
    while (this.#evictRetained());
  }

  /** Release the pages of the least recently used conversation other than ``except``. False if there is none. */
  #evictRetained(except: RetainedSequence | null = null): boolean {
    for (const retained of this.#retained) {
      if (retained.tables.length === 0 || retained === except) continue;
      retained.drop();
      return true;
    }
    return false;
  }

  /** Copy on write. Without a free page, the positions after the cached pages are computed again. */
  #makeWritable(sequence: Sequence, index: number, copies: [number, number][][]): void {
    const { tables } = sequence;
    for (const [group, { pool, pages }] of tables.entries()) {
      const shared = pages[index] ?? -1;
      if (pool.users(shared) === 1) continue;
      if (pool.free === 0 && !this.prefixes.evict(group)) {
        this.restart(sequence);
        this.#extendPrefix(sequence);
        return;
      }
      const own = pool.allocate();
      copies[group]?.push([shared, own]);
      pages[index] = own;
      pool.release(shared);
    }
  }

  #match({ tokens, maxCached, adapterId }: Sequence): PagesByGroup {
    return this.prefixes.match(tokens, Math.floor(maxCached / this.config.pageSize), adapterId);
  }

  /** Continue with full pages that another sequence with the same prefix has filled. */
  #extendPrefix(sequence: Sequence): void {
    const pages = this.#match(sequence);
    const more = (pages[0]?.length ?? 0) * this.config.pageSize - sequence.computed;
    if (more <= 0) return;
    this.#extend(sequence, pages);
    sequence.computed += more;
    if (sequence.generated === 0) sequence.cachedTokens += more;
  }

  #extend({ tables }: Sequence, prefix: PagesByGroup): void {
    tables.forEach((table, group) => {
      const pages = prefix[group] ?? [];
      table.extend(pages, table.pool.deadPages(pages.length * this.config.pageSize));
    });
  }
}

function commonLength(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length);
  for (let index = 0; index < length; index++) {
    if (a[index] !== b[index]) return index;
  }
  return length;
}
