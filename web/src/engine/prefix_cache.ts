// The prefix cache: a radix tree over full pages. Token ids flow in; the pages that hold the keys and values of their beginning flow out, so that
// a second turn, or a second conversation with the same system prompt, computes new tokens only. Zheng et al. 2024 (SGLang's RadixAttention).

import type { PagePool } from "./page_pool.js";

interface Node {
  readonly key: string;
  readonly page: number;
  readonly parent: Node | null;
  readonly children: Map<string, Node>;
  lastUsed: number;
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

  /** The pages of the longest known beginning of ``tokens``, at most ``limit`` of them. They are not shared yet. */
  match(tokens: readonly number[], limit: number): readonly number[] {
    const pages: number[] = [];
    const time = ++this.#clock;
    let level = this.#roots;
    while (pages.length < limit) {
      const node = level.get(this.key(tokens, pages.length));
      if (node === undefined) break;
      node.lastUsed = time;
      pages.push(node.page);
      level = node.children;
    }
    return pages;
  }

  /**
   * Remember the first ``count`` pages of a sequence, all full. Where the same tokens are known already, the sequence gets the page known first in place
   * of its own: so whoever uses a page of the tree uses those on the way to it as well.
   */
  insert(tokens: readonly number[], pages: number[], count: number): void {
    const time = ++this.#clock;
    let level = this.#roots;
    let parent: Node | null = null;
    for (let index = 0; index < count; index++) {
      const key = this.key(tokens, index);
      const page = pages[index] ?? -1;
      let node = level.get(key);
      if (node === undefined) {
        this.pool.share(page);
        node = { key, page, parent, children: new Map(), lastUsed: time };
        level.set(key, node);
        this.#nodes.add(node);
      } else if (node.page !== page) {
        this.pool.share(node.page);
        this.pool.release(page);
        pages[index] = node.page;
      }
      node.lastUsed = time;
      parent = node;
      level = node.children;
    }
  }

  /** How many pages `evict` could free: all that nobody else uses. */
  get evictable(): number {
    let count = 0;
    for (const node of this.#nodes) if (this.pool.users(node.page) === 1) count++;
    return count;
  }

  /** Free the page that was not used for longest. False where there is none to free. */
  evict(): boolean {
    let oldest: Node | null = null;
    for (const node of this.#nodes) {
      if (node.children.size > 0 || this.pool.users(node.page) > 1) continue;
      if (oldest === null || node.lastUsed < oldest.lastUsed) oldest = node;
    }
    if (oldest === null) return false;
    this.remove(oldest);
    return true;
  }

  /** Forget everything, as after the loss of the device. */
  clear(): void {
    for (const node of this.#nodes) this.pool.release(node.page);
    this.#nodes.clear();
    this.#roots.clear();
  }

  private remove(node: Node): void {
    (node.parent?.children ?? this.#roots).delete(node.key);
    this.#nodes.delete(node);
    this.pool.release(node.page);
  }

  private key(tokens: readonly number[], index: number): string {
    return tokens.slice(index * this.pageSize, (index + 1) * this.pageSize).join();
  }
}
