// A cache kind: one kind of memory that a model keeps of each sequence from step to step. Scheduler and prefix cache have
// a list of kinds, treat them alike, and use only the members of `CacheKind`. `Pages` are keys and values, of layers with
// or without a window; `States` are what a recurrent layer has made of all tokens so far. A unit of a kind (a page, a
// state's slot) is free, or has users: the sequences that hold it, and the prefix cache.

import type { PageTable } from "./pages.js";
import type { StateTable } from "./states.js";

/** What a sequence holds of a kind. */
export type Table = PageTable | StateTable;

/** A sequence. ``tables`` are what it holds of each kind. */
export interface Holder {
  readonly tables: readonly Table[];
}

export type Level = Map<string, Node>;

/**
 * The tokens of a page in the prefix cache, which follow those of ``parent``, and by kind the snapshot at their end;
 * null without it. ``siblings`` all follow ``parent``.
 */
export interface Node {
  readonly key: string;
  readonly tokens: readonly number[];
  readonly parent: Node | null;
  readonly siblings: Level;
  readonly children: Level;
  readonly snapshots: (number | null)[];
}

export function isRemoved(node: Node): boolean {
  return node.siblings.get(node.key) !== node;
}

/**
 * The nodes of ``path`` have snapshots of the first ``length`` tokens of a sequence. ``known``: how many tokens have
 * nodes, of which the last may lack snapshots.
 */
export interface Prefix {
  readonly length: number;
  readonly path: readonly Node[];
  readonly known: number;
}

export interface CacheKind {
  /** Whether a prefix needs the snapshots of all its nodes; otherwise only the last ones are read. */
  readonly isChain: boolean;
  /** Whether a prefix ends only where a snapshot was made, and not within a page. */
  readonly isExact: boolean;
  /** The nodes by their snapshot, if only the prefix cache uses that; the one not used for longest is first. */
  readonly idle: Map<number, Node>;
  /** Pages to copy on the device before the next step. */
  copies: [from: number, to: number][];
  /** How many units can be reserved without eviction. */
  readonly free: number;
  /** What a sequence holds that holds nothing. */
  table: () => Table;
  /** How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens. */
  unread: (length: number) => number;
  /** How many more units a holder can need for ``length`` tokens. */
  growth: (holder: Holder, length: number) => number;
  /** The same for a sequence that starts from a prefix, with the units that must not be evicted for it. */
  admission: (prefix: Prefix, length: number) => number;
  /** How many units `reserve` takes. */
  missing: (holder: Holder, start: number, length: number, known: number) => number;
  /**
   * Let a holder compute its positions from ``start`` up to ``length``; those from ``known`` on are drafts, which
   * `rewind` may take back. The units must be free.
   */
  reserve: (holder: Holder, start: number, length: number, known: number) => void;
  /** Release what no position from ``length`` on reads. */
  trim: (holder: Holder, length: number) => void;
  /**
   * Take back what follows ``length`` tokens, as drafts were refused. Returns how many of these need not be computed
   * again.
   */
  rewind: (holder: Holder, length: number) => number;
  /** Release everything. */
  drop: (holder: Holder) => void;
  /** Retain in a node what the holder has of its page ``index``, which ends after ``length`` tokens. */
  snapshot: (holder: Holder, node: Node, index: number, length: number) => void;
  /** Let a holder of fewer tokens continue after a prefix in the cache. */
  restore: (holder: Holder, prefix: Prefix) => void;
  /** Remove a node's snapshot, if it has one. */
  forget: (node: Node) => void;
}

/** ``size`` units of the kind ``index``, all free at first. */
export class Units {
  readonly idle = new Map<number, Node>();
  copies: [from: number, to: number][] = [];
  readonly #users: Uint32Array;
  /** The nodes of the units that the prefix cache uses. */
  protected readonly nodes = new Map<number, Node>();
  // A stack: the unit freed last is allocated first.
  readonly #free: number[];

  constructor(
    protected readonly index: number,
    readonly size: number,
  ) {
    this.#users = new Uint32Array(size);
    this.#free = Array.from({ length: size }, (_, unit) => size - 1 - unit);
  }

  get free(): number {
    return this.#free.length;
  }

  /** How many units the prefix cache uses. */
  get cached(): number {
    return this.nodes.size;
  }

  /** How many users a unit has, including the prefix cache. */
  users(unit: number | undefined): number {
    return this.#users[unit ?? -1] ?? 0;
  }

  forget(node: Node): void {
    const unit = this.snapshotOf(node);
    if (unit === null) return;
    node.snapshots[this.index] = null;
    this.nodes.delete(unit);
    this.idle.delete(unit);
    this.release(unit);
  }

  protected snapshotOf(node: Node | undefined): number | null {
    return node?.snapshots[this.index] ?? null;
  }

  /** Make a unit that has a user the snapshot of a node. */
  protected cache(unit: number, node: Node): void {
    this.use(unit);
    node.snapshots[this.index] = unit;
    this.nodes.set(unit, node);
  }

  /** A free unit, for one user. There must be one. */
  protected allocate(): number {
    const unit = this.#free.pop();
    if (unit === undefined) throw new Error("no unit is free");
    this.#users[unit] = 1;
    return unit;
  }

  /** Add a user to a unit that has one. */
  protected use(unit: number): void {
    this.#users[unit] = this.#requireUsed(unit) + 1;
    this.idle.delete(unit);
  }

  /** Remove a user; the unit is free when it was the last one. */
  protected release(unit: number): void {
    const users = this.#requireUsed(unit) - 1;
    this.#users[unit] = users;
    const node = this.nodes.get(unit);
    if (users === 0) this.#free.push(unit);
    else if (users === 1 && node !== undefined) this.idle.set(unit, node);
  }

  #requireUsed(unit: number): number {
    const users = this.users(unit);
    if (users === 0) throw new Error(`unit ${unit} has no user`);
    return users;
  }
}
