// Tests the pools and the prefix cache of page groups with windows.

import { expect, test } from "vitest";

import { PagePool } from "../../src/engine/page_pool.js";
import { PageTable } from "../../src/engine/page_table.js";
import { CachePosition, PrefixCache } from "../../src/engine/prefix_cache.js";

const SIZE = 2;
const TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

function cacheOf(...windows: readonly number[]): { pools: readonly PagePool[]; cache: PrefixCache } {
  const pools = windows.map((window) => new PagePool({ pages: 8, window }, SIZE));
  return { pools, cache: new PrefixCache(pools, SIZE) };
}

function tablesOf(pools: readonly PagePool[], count: number): readonly PageTable[] {
  return pools.map(
    (pool) =>
      new PageTable(
        pool,
        Array.from({ length: count }, () => pool.allocate()),
      ),
  );
}

/** Cache the first ``count`` pages of TOKENS, as of a sequence that has ended. */
function fill({ pools, cache }: ReturnType<typeof cacheOf>, count: number): void {
  const [tables, position] = [tablesOf(pools, count), new CachePosition()];
  cache.insert(position, TOKENS, tables, count);
  cache.leave(position);
  for (const table of tables) table.truncate(0);
}

test("a page is dead when the next position sees none of its tokens", () => {
  const first = (window: number, next: number): number => new PagePool({ pages: 1, window }, 4).deadPages(next);
  expect([0, 1, 6, 9, 10, 13, 14].map((next) => first(7, next))).toEqual([0, 0, 0, 0, 1, 1, 2]);
  expect(first(Infinity, 1000)).toBe(0);
  expect(first(1, 8)).toBe(2);
});

test("window pages are evicted from the front, and a prefix is usable while its last window is cached", () => {
  const set = cacheOf(Infinity, 3);
  const { pools, cache } = set;
  fill(set, 4);
  const found = (limit: number): readonly number[][] => cache.match(TOKENS, limit).map((pages) => [...pages]);
  // After 8 tokens, the next position attends to positions 6 to 8; page 3 holds positions 6 and 7.
  expect(found(4)).toEqual([
    [0, 1, 2, 3],
    [0, 0, 0, 3],
  ]);
  // The least recently used pages of the window are those before the last match.
  expect([cache.evict(1), cache.evict(1), cache.evict(1)]).toEqual([true, true, true]);
  expect([cache.evictable(0), cache.evictable(1), pools[1]?.free]).toEqual([4, 1, 7]);
  expect(found(4)[0]).toEqual([0, 1, 2, 3]);
  // After 6 tokens, the next position attends to page 2, which was evicted.
  expect(found(3)).toEqual([[], []]);
  expect([cache.evict(1), cache.evict(1)]).toEqual([true, false]);
  expect(found(4)).toEqual([[], []]);
  fill(set, 2);
  expect(found(4)).toEqual([
    [0, 1],
    [0, 2],
  ]);
});

test("an evicted page of full layers ends the prefix for the layers with windows too", () => {
  const set = cacheOf(Infinity, 3);
  fill(set, 4);
  expect([set.cache.evict(0), set.cache.evictable(0), set.cache.evictable(1)]).toEqual([true, 3, 3]);
  expect(set.cache.match(TOKENS, 4).map((pages) => pages.length)).toEqual([3, 3]);
});

test("if all layers have windows, pages are evicted before others of the same prefix", () => {
  const set = cacheOf(3);
  const { pools, cache } = set;
  fill(set, 4);
  expect([cache.evict(0), cache.evict(0), cache.evict(0), cache.evictable(0)]).toEqual([true, true, true, 1]);
  expect(cache.match(TOKENS, 4)).toEqual([[0, 0, 0, 3]]);
  expect([cache.evict(0), cache.evictable(0), pools[0]?.free]).toEqual([true, 0, 8]);
  expect(cache.match(TOKENS, 4)).toEqual([[]]);
});

test("a sequence whose cached pages were all evicted caches its next ones", () => {
  const { pools, cache } = cacheOf(1);
  const [tables, position] = [tablesOf(pools, 4), new CachePosition()];
  const [tablesOfSecond, second] = [tablesOf(pools, 2), new CachePosition()];
  cache.insert(position, TOKENS, tables, 2);
  cache.insert(second, TOKENS, tablesOfSecond, 2);
  // The window of the next position begins behind both pages.
  for (const table of [...tables, ...tablesOfSecond]) table.giveBack(2);
  expect([cache.evict(0), cache.evict(0), cache.evict(0)]).toEqual([true, true, false]);
  const other = new CachePosition();
  cache.insert(other, TOKENS, tablesOf(pools, 1), 1);
  cache.leave(second);
  expect(cache.match(TOKENS, 1)).toEqual([[0]]);
  cache.insert(position, TOKENS, tables, 4);
  expect(position.depth).toBe(4);
  expect(cache.match(TOKENS, 4)).toEqual([[0, 0, 0, 0]]);
  cache.leave(position);
  cache.leave(other);
  for (const table of tables) table.truncate(0);
  expect(cache.evictable(0)).toBe(2);
});
