// The prefix cache: a radix tree over full pages, which finds the pages that hold the longest known prefix of some
// tokens. With it, a second turn, or a second conversation with the same system prompt, computes only its new tokens.
// Zheng et al. 2024 (SGLang's RadixAttention).
//
// A node holds a page of each group. The pages of a group with a window are evicted on their own, and a prefix is
// usable if that group still has the pages within the window before its end.

import type { PagesByGroup } from "../runtime/page_groups.js";
import type { PagePool } from "./page_pool.js";
import type { PageTable } from "./page_table.js";

interface Node {
  readonly key: string;
  readonly parent: Node | null;
  readonly children: Map<string, Node>;
  /** By group, the page and the time of its last use by the cache's clock; null without a page. */
  readonly entries: (Entry | null)[];
}

interface Entry {
  readonly page: number;
  lastUsed: number;
}

/**
 * How far a sequence's pages are in the tree: its first ``depth`` pages are those of ``node`` and its ancestors. A
 * running sequence uses all of them that are within the window, so none of these can be evicted. The time of its last
 * use is recorded only in ``lastUsed``, and is copied to the entries when the sequence leaves.
 */
export class CachePosition {
  node: Node | null = null;
  depth = 0;
  lastUsed = 0;
}

export class PrefixCache {
  readonly #roots = new Map<string, Node>();
  readonly #nodes = new Set<Node>();
  #clock = 0;

  /** The cache is a user of each page that it holds. ``pools``: that of each group. */
  constructor(
    private readonly pools: readonly PagePool[],
    private readonly pageSize: number,
  ) {}

  /**
   * By group, the full pages of the longest usable prefix of ``tokens``, at most ``limit`` pages; 0 for pages behind
   * the window. The caller is not a user of them yet. ``adapter``: the id of the adapter that computed them.
   */
  match(tokens: readonly number[], limit: number, adapter = ""): PagesByGroup {
    const path: Node[] = [];
    // By group, the pages up to the last one that is missing.
    const incomplete = this.pools.map(() => 0);
    let usable = 0;
    let level = this.#roots;
    while (path.length < limit) {
      const node = level.get(this.#key(tokens, path.length, adapter));
      if (node === undefined) break;
      path.push(node);
      node.entries.forEach((entry, group) => {
        if (entry === null) incomplete[group] = path.length;
      });
      if (this.pools.every((pool, group) => (incomplete[group] ?? 0) <= pool.deadPages(path.length * this.pageSize)))
        usable = path.length;
      level = node.children;
    }
    path.length = usable;
    return this.pools.map((pool, group) => {
      const dead = pool.deadPages(usable * this.pageSize);
      return path.map(({ entries }, index) => {
        const entry = entries[group];
        if (index < dead || !entry) return 0;
        entry.lastUsed = ++this.#clock;
        return entry.page;
      });
    });
  }

  /**
   * Cache the first ``count`` pages of a sequence, all full, and move its position there. If the same tokens are
   * already cached, the cached page replaces the sequence's own page. Therefore a user of a page in the tree also uses
   * the pages of its ancestors within the window.
   */
  insert(
    position: CachePosition,
    tokens: readonly number[],
    tables: readonly PageTable[],
    count: number,
    adapter = "",
  ): void {
    position.lastUsed = ++this.#clock;
    // A node is removed when all of its pages have been evicted, which lie behind the sequence's window then.
    if (position.node !== null && !this.#nodes.has(position.node)) this.#moveToRoot(position);
    for (let index = position.depth; index < count; index++) {
      const level = position.node?.children ?? this.#roots;
      const key = this.#key(tokens, index, adapter);
      let node = level.get(key);
      if (node === undefined) {
        node = { key, parent: position.node, children: new Map(), entries: this.pools.map(() => null) };
        level.set(key, node);
        this.#nodes.add(node);
      }
      const { entries } = node;
      tables.forEach(({ pool, pages, dead }, group) => {
        const page = pages[index] ?? -1;
        const entry = entries[group];
        if (index < dead || entry?.page === page) return;
        pool.share(entry?.page ?? page);
        if (entry) {
          pool.release(page);
          pages[index] = entry.page;
        } else {
          entries[group] = { page, lastUsed: position.lastUsed };
        }
      });
      position.node = node;
      position.depth = index + 1;
    }
  }

  /**
   * Move the position of a sequence to the root, because it no longer uses the pages of the tree. The caller releases
   * its pages afterwards.
   */
  leave(position: CachePosition): void {
    const { node: last, lastUsed } = position;
    for (let node = last; node !== null; node = node.parent) {
      node.entries.forEach((entry, group) => {
        // The other entries lie behind the window.
        if (entry && !this.#isIdle(group, entry)) entry.lastUsed = Math.max(entry.lastUsed, lastUsed);
      });
    }
    this.#prune(last);
    this.#moveToRoot(position);
  }

  /** How many pages of a group `evict` could free: those that only the cache uses. */
  evictable(group: number): number {
    let count = 0;
    for (const { entries } of this.#nodes) if (this.#isIdle(group, entries[group])) count++;
    return count;
  }

  /**
   * Free the least recently used page of a group. Without a window it is the last one of a prefix, which becomes
   * shorter in all groups. False if there is none to free.
   */
  evict(group: number): boolean {
    const windowed = this.pools[group]?.window !== Infinity;
    let oldest: Node | null = null;
    let time = Infinity;
    for (const node of this.#nodes) {
      const lastUsed = node.entries[group]?.lastUsed ?? Infinity;
      if (lastUsed >= time || (!windowed && node.children.size > 0) || !this.#isIdle(group, node.entries[group]))
        continue;
      oldest = node;
      time = lastUsed;
    }
    if (oldest === null) return false;
    this.#removePages(oldest, windowed ? group : null);
    this.#prune(oldest);
    return true;
  }

  /** Remove everything, for example after the loss of the device. */
  clear(): void {
    for (const node of this.#nodes) this.#removePages(node, null);
    this.#nodes.clear();
    this.#roots.clear();
  }

  #moveToRoot(position: CachePosition): void {
    position.node = null;
    position.depth = 0;
  }

  /** Remove the page of a group from a node, or the pages of all groups. */
  #removePages({ entries }: Node, only: number | null): void {
    entries.forEach((entry, group) => {
      if (entry === null || (only ?? group) !== group) return;
      this.pools[group]?.release(entry.page);
      entries[group] = null;
    });
  }

  /** Remove a node without pages and children, and then its ancestors if the same is true of them. */
  #prune(node: Node | null): void {
    for (; node?.children.size === 0 && node.entries.every((entry) => entry === null); node = node.parent)
      if (this.#nodes.delete(node)) (node.parent?.children ?? this.#roots).delete(node.key);
  }

  /** Whether only the cache uses a page. */
  #isIdle(group: number, entry: Entry | null | undefined): boolean {
    return !!entry && this.pools[group]?.users(entry.page) === 1;
  }

  /** Only the first page's key names the adapter, because all others are below it. */
  #key(tokens: readonly number[], index: number, adapter: string): string {
    return (index > 0 ? "" : adapter) + tokens.slice(index * this.pageSize, (index + 1) * this.pageSize).join();
  }
}
