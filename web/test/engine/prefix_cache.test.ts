// Tests pages with windows, and the prefix cache over them.

import { expect, test } from "vitest";

import type { Node } from "../../src/engine/cache_kind.js";
import { PageTable, Pages } from "../../src/engine/pages.js";
import type { Cached } from "../../src/engine/prefix_cache.js";
import { PrefixCache } from "../../src/engine/prefix_cache.js";

const TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

const pagesOf = (window: number, index = 0, pageSize = 2): Pages =>
  new Pages(index, { pages: 8, window }, { context: 64, pageSize, maxTokens: 64 });

function cacheOf<Windows extends number[]>(...windows: Windows) {
  const kinds = windows.map((window, index) => pagesOf(window, index)) as { [Index in keyof Windows]: Pages };
  return { kinds, cache: new PrefixCache(kinds, 2) };
}

/** A sequence with ``count`` pages of TOKENS. */
function sequenceOf(kinds: readonly Pages[], count: number): Cached {
  const sequence = { keys: TOKENS, adapterId: "", path: [] as Node[], tables: kinds.map(() => new PageTable()) };
  for (const kind of kinds) kind.reserve(sequence, 0, 2 * count);
  return sequence;
}

/** Cache the first ``count`` pages of TOKENS, as of a sequence that has ended. */
function fill(kinds: readonly Pages[], cache: PrefixCache, count: number): void {
  const sequence = sequenceOf(kinds, count);
  cache.insert(sequence, count);
  cache.leave(sequence);
}

function evict(cache: PrefixCache, kind: Pages, count: number): void {
  for (let index = 0; index < count; index++) cache.evict(kind);
}

/** The pages of each kind in the longest prefix of at most ``limit`` pages. */
function found(cache: PrefixCache, limit: number): readonly (readonly (number | null)[])[] {
  return cache.find(TOKENS, 2 * limit).path.map(({ snapshots }) => [...snapshots]);
}

test("a page is dead when the next position sees none of its tokens", () => {
  const first = (window: number, next: number): number => pagesOf(window, 0, 4).unread(next);
  expect([0, 1, 6, 9, 10, 13, 14].map((next) => first(7, next))).toEqual([0, 0, 0, 0, 1, 1, 2]);
  expect(first(Infinity, 1000)).toBe(0);
  expect(first(1, 8)).toBe(2);
});

test("window pages are evicted from the front, and a prefix is usable while its last window is cached", () => {
  const { kinds, cache } = cacheOf(Infinity, 3);
  const [full, windowed] = kinds;
  fill(kinds, cache, 4);
  expect(found(cache, 4)).toHaveLength(4);
  // The least recently used pages of the window are those before the last match.
  evict(cache, windowed, 3);
  expect([full.idle.size, [...windowed.idle.keys()], windowed.free]).toEqual([4, [3], 7]);
  // After 8 tokens, the next position attends to positions 6 to 8; page 3 holds positions 6 and 7.
  expect(found(cache, 4)).toEqual([
    [0, null],
    [1, null],
    [2, null],
    [3, 3],
  ]);
  // After 6 tokens, the next position attends to page 2, which was evicted.
  expect(found(cache, 3)).toEqual([]);
  evict(cache, windowed, 1);
  expect(windowed.idle.size).toBe(0);
  expect(found(cache, 4)).toEqual([]);
  fill(kinds, cache, 2);
  expect(found(cache, 4).map(([page]) => page)).toEqual([0, 1]);
});

test("an evicted page of full layers ends the prefix for the layers with windows too", () => {
  const { kinds, cache } = cacheOf(Infinity, 3);
  fill(kinds, cache, 4);
  evict(cache, kinds[0], 1);
  expect(kinds.map(({ idle }) => idle.size)).toEqual([3, 3]);
  expect(found(cache, 4)).toHaveLength(3);
});

test("if all layers have windows, pages are evicted before others of the same prefix", () => {
  const { kinds, cache } = cacheOf(3);
  fill(kinds, cache, 4);
  evict(cache, kinds[0], 3);
  expect(found(cache, 4)).toEqual([[null], [null], [null], [3]]);
  evict(cache, kinds[0], 1);
  expect([kinds[0].idle.size, kinds[0].free]).toEqual([0, 8]);
  expect(found(cache, 4)).toEqual([]);
});

test("a sequence whose cached pages were all evicted caches its next ones", () => {
  const { kinds, cache } = cacheOf(1);
  const [pages] = kinds;
  const sequence = sequenceOf(kinds, 4);
  const second = sequenceOf(kinds, 2);
  cache.insert(sequence, 2);
  cache.insert(second, 2);
  // The window of the next position begins behind both pages.
  for (const each of [sequence, second]) pages.trim(each, 4);
  evict(cache, pages, 2);
  expect(pages.idle.size).toBe(0);
  const other = sequenceOf(kinds, 1);
  cache.insert(other, 1);
  cache.leave(second);
  expect(found(cache, 1)).toHaveLength(1);
  cache.insert(sequence, 4);
  expect(sequence.path).toHaveLength(4);
  expect(found(cache, 4)).toHaveLength(4);
  cache.leave(sequence);
  cache.leave(other);
  expect(pages.free + pages.idle.size).toBe(8);
});
