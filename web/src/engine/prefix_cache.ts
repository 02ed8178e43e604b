// The prefix cache: a radix tree over full pages of tokens, which finds what the cache kinds hold of the longest known
// prefix of some tokens. With it, a second turn, or a second conversation with the same system prompt, computes only its
// new tokens. Zheng et al. 2024 (SGLang's RadixAttention). Each adapter has a tree of its own.
//
// A node has a snapshot of each kind. Those of a kind that is no chain are evicted on their own, and a prefix is usable
// if that kind still has the snapshots that are read after its end. If a kind is exact, a prefix ends only at its
// snapshots. Of conversations, the partly filled last page is cached too.

import type { CacheKind, Holder, Level, Node, Prefix } from "./cache_kind.js";
import { isRemoved } from "./cache_kind.js";

/** A sequence that the cache knows. */
export interface Cached extends Holder {
  /** Its tokens as the cache compares them. */
  readonly keys: readonly number[];
  /** The id of the adapter that computes it; "" for none. */
  readonly adapterId: string;
  /** The nodes of its first full pages. */
  path: Node[];
}

export class PrefixCache {
  readonly #roots = new Map<string, Level>();
  readonly #isExact: boolean;

  /** The cache is a user of each snapshot. */
  constructor(
    private readonly kinds: readonly CacheKind[],
    private readonly pageSize: number,
  ) {
    this.#isExact = kinds.some((kind) => kind.isExact);
  }

  /** The longest usable prefix of at most ``limit`` tokens with these keys. ``partialPage``: it may end within a page. */
  find(keys: readonly number[], limit: number, adapter = "", partialPage = false): Prefix {
    let level = this.#roots.get(adapter);
    const path: Node[] = [];
    // By kind, the number of nodes up to the last one without a snapshot.
    const incomplete = this.kinds.map(() => 0);
    let usable = 0;
    while ((path.length + 1) * this.pageSize <= limit) {
      const node = level?.get(this.#page(keys, path.length).join());
      if (node === undefined) break;
      path.push(node);
      level = node.children;
      if (this.#isUsable(path, path.length * this.pageSize, incomplete)) usable = path.length;
    }
    let length = usable * this.pageSize;
    const known = path.length * this.pageSize;
    if (partialPage) {
      const [last, common] = this.#longest(level, keys.slice(known, limit));
      if (last !== null && this.#isUsable([...path, last], known + common, incomplete)) {
        path.push(last);
        usable = path.length;
        length = known + common;
      }
    }
    path.length = usable;
    this.#touch(path, length);
    return { length, path, known };
  }

  /**
   * Cache the first ``count`` pages of a sequence, all full. If the same tokens are already cached, the sequence uses
   * the cached pages. Therefore a user of a page in the tree also uses the pages of its ancestors that are still read.
   */
  insert(sequence: Cached, count: number): void {
    const last = sequence.path.at(-1);
    // A node is removed when all of its pages have been evicted, which lie behind the sequence's window then.
    if (last !== undefined && isRemoved(last)) sequence.path.length = 0;
    while (sequence.path.length < count) this.#add(sequence, this.#page(sequence.keys, sequence.path.length));
  }

  /** Cache the partly filled last page of a sequence, and remove those that hold a prefix of its tokens. */
  insertPartial(sequence: Cached, length: number): void {
    const tokens = sequence.keys.slice(sequence.path.length * this.pageSize, length);
    const nodes = [...this.#level(sequence).values()];
    const common = (node: Node): number => commonLength(node.tokens, tokens);
    // An exact kind may have a snapshot for a node that has none.
    const least = tokens.length + (this.#isExact ? 1 : 0);
    if (nodes.some((node) => common(node) === tokens.length && node.tokens.length >= least)) return;
    for (const node of nodes)
      if (
        common(node) === node.tokens.length &&
        node.tokens.length < tokens.length &&
        node.children.size === 0 &&
        this.#isIdle(node)
      )
        this.remove(node);
    if (tokens.length > 0) this.#add(sequence, tokens);
  }

  /** Release what a sequence holds, whether it is in the tree or not. */
  leave(sequence: Cached): void {
    for (const kind of this.kinds) kind.drop(sequence);
    this.#prune(sequence.path.at(-1) ?? null);
    sequence.path = [];
  }

  /** Free the unit of a kind that has been idle for longest. In a chain, the prefix becomes shorter for all kinds. */
  evict(kind: CacheKind): void {
    const [node] = kind.idle.values();
    if (node === undefined) throw new Error("nothing is idle");
    if (kind.isChain) {
      this.remove(node);
    } else {
      // No prefix can end at an exact snapshot without the others.
      for (const own of this.kinds) if (own === kind || own.isExact) own.forget(node);
      this.#prune(node);
    }
  }

  /** Remove a node without children. */
  remove(node: Node): void {
    for (const kind of this.kinds) kind.forget(node);
    this.#prune(node);
  }

  /** Remove everything, for example after the loss of the device. No sequence is in the cache. */
  clear(): void {
    for (const kind of this.kinds) for (const node of [...kind.idle.values()]) kind.forget(node);
    this.#roots.clear();
  }

  /** The node that has the most tokens in common with ``tokens``, and how many. */
  #longest(level: Level = new Map(), tokens: readonly number[]): [Node | null, number] {
    let found: [Node | null, number] = [null, 0];
    for (const node of level.values()) {
      // A page that a sequence fills in the same step cannot be copied before it.
      const isSettled = node.tokens.length < this.pageSize || this.#isIdle(node);
      const common = isSettled ? commonLength(node.tokens, tokens) : 0;
      if (common > found[1] && (!this.#isExact || common === node.tokens.length)) found = [node, common];
    }
    return found;
  }

  /** Whether no snapshot is missing that is read after a prefix. Updates ``incomplete`` for its last node. */
  #isUsable(path: readonly Node[], length: number, incomplete: number[]): boolean {
    this.kinds.forEach((_, index) => {
      if (path.at(-1)?.snapshots[index] === null) incomplete[index] = path.length;
    });
    return this.kinds.every((kind, index) => (incomplete[index] ?? 0) <= kind.unread(length));
  }

  /** A prefix is used now. In a chain, the last page is evicted first. */
  #touch(path: readonly Node[], length: number): void {
    this.kinds.forEach((kind, index) => {
      const read = path.slice(kind.unread(length));
      for (const node of kind.isChain ? read.reverse() : read) {
        const snapshot = node.snapshots[index] ?? -1;
        if (kind.idle.delete(snapshot)) kind.idle.set(snapshot, node);
      }
    });
  }

  /** Whether only the cache uses its snapshots. */
  #isIdle({ snapshots }: Node): boolean {
    return this.kinds.every(({ idle }, index) => snapshots[index] === null || idle.has(snapshots[index] ?? -1));
  }

  /** Put a sequence's next page into the tree, and into its path if it is full. */
  #add(sequence: Cached, tokens: readonly number[]): void {
    const { path } = sequence;
    const siblings = this.#level(sequence);
    const key = tokens.join();
    let node = siblings.get(key);
    if (node === undefined) {
      const snapshots = this.kinds.map(() => null);
      node = { key, tokens, parent: path.at(-1) ?? null, siblings, children: new Map(), snapshots };
      siblings.set(key, node);
    }
    const end = path.length * this.pageSize + tokens.length;
    for (const kind of this.kinds) kind.snapshot(sequence, node, path.length, end);
    if (tokens.length === this.pageSize) path.push(node);
  }

  /** The nodes that follow a sequence's path. */
  #level({ path, adapterId }: Cached): Level {
    const level = path.at(-1)?.children ?? this.#roots.get(adapterId) ?? new Map<string, Node>();
    if (path.length === 0) this.#roots.set(adapterId, level);
    return level;
  }

  /** Remove a node without snapshots and children, and then its ancestors if the same is true of them. */
  #prune(node: Node | null): void {
    for (; node?.children.size === 0 && node.snapshots.every((each) => each === null); node = node.parent) {
      if (isRemoved(node)) return;
      node.siblings.delete(node.key);
    }
  }

  #page(keys: readonly number[], index: number): readonly number[] {
    return keys.slice(index * this.pageSize, (index + 1) * this.pageSize);
  }
}

function commonLength(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length);
  for (let index = 0; index < length; index++) {
    if (a[index] !== b[index]) return index;
  }
  return length;
}
