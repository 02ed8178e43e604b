// The prefix cache: a radix tree over full pages, which finds the pages that hold the longest known prefix of some
// tokens. With it, a second turn, or a second conversation with the same system prompt, computes only its new tokens.
// Zheng et al. 2024 (SGLang's RadixAttention).

import type { PagePool } from "./page_pool.js";

interface Node {
  readonly key: string;
  readonly page: number;
  readonly parent: Node | null;
  readonly children: Map<string, Node>;
  /** A time of the cache's clock. */
  lastUsed: number;
}

/**
 * How far a sequence's pages are in the tree: its first ``depth`` pages are those of ``node`` and its ancestors. A
 * running sequence uses all of them, so none of them can be evicted. The time of its last use is recorded only in
 * ``lastUsed``, and is copied to the nodes when the sequence leaves.
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

  /** The cache is a user of each page that it holds. */
  constructor(
    private readonly pool: PagePool,
    private readonly pageSize: number,
  ) {}

  /** How many pages it holds. */
  get size(): number {
    return this.#nodes.size;
  }

  /**
   * The full pages of the longest known prefix of ``tokens``, at most ``limit`` pages. The caller is not a user of them
   * yet.
   */
  match(tokens: readonly number[], limit: number): readonly number[] {
    const pages: number[] = [];
    const now = ++this.#clock;
    let level = this.#roots;
    while (pages.length < limit) {
      const node = level.get(this.#key(tokens, pages.length));
      if (node === undefined) break;
      node.lastUsed = now;
      pages.push(node.page);
      level = node.children;
    }
    return pages;
  }

  /**
   * Cache the first ``count`` pages of a sequence, all full, and move its position there. If the same tokens are
   * already cached, the cached page replaces the sequence's own page. Therefore a user of a page in the tree also uses
   * its ancestors.
   */
  insert(position: CachePosition, tokens: readonly number[], pages: number[], count: number): void {
    position.lastUsed = ++this.#clock;
    for (let index = position.depth; index < count; index++) {
      const level = position.node?.children ?? this.#roots;
      const key = this.#key(tokens, index);
      const page = pages[index] ?? -1;
      let node = level.get(key);
      if (node === undefined) {
        this.pool.share(page);
        node = { key, page, parent: position.node, children: new Map(), lastUsed: position.lastUsed };
        level.set(key, node);
        this.#nodes.add(node);
      } else if (node.page !== page) {
        this.pool.share(node.page);
        this.pool.release(page);
        pages[index] = node.page;
      }
      position.node = node;
      position.depth = index + 1;
    }
  }

  /**
   * Move the position of a sequence to the root, because it no longer uses the pages of the tree. The caller releases
   * its pages.
   */
  leave(position: CachePosition): void {
    for (let { node } = position; node !== null; node = node.parent)
      node.lastUsed = Math.max(node.lastUsed, position.lastUsed);
    position.node = null;
    position.depth = 0;
  }

  /** How many pages `evict` could free: those that only the cache uses. */
  get evictable(): number {
    let count = 0;
    for (const node of this.#nodes) if (this.pool.users(node.page) === 1) count++;
    return count;
  }

  /** Free the least recently used page. False if there is none to free. */
  evict(): boolean {
    let oldest: Node | null = null;
    for (const node of this.#nodes) {
      if (node.children.size > 0 || this.pool.users(node.page) > 1) continue;
      if (oldest === null || node.lastUsed < oldest.lastUsed) oldest = node;
    }
    if (oldest === null) return false;
    this.#remove(oldest);
    return true;
  }

  /** Remove everything, for example after the loss of the device. */
  clear(): void {
    for (const node of this.#nodes) this.pool.release(node.page);
    this.#nodes.clear();
    this.#roots.clear();
  }

  #remove(node: Node): void {
    (node.parent?.children ?? this.#roots).delete(node.key);
    this.#nodes.delete(node);
    this.pool.release(node.page);
  }

  #key(tokens: readonly number[], index: number): string {
    return tokens.slice(index * this.pageSize, (index + 1) * this.pageSize).join();
  }
}
