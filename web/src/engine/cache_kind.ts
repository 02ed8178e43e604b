// The interface of a cache kind: one kind of memory that a model keeps of each sequence from step to step. Scheduler and
// prefix cache have a list of kinds and treat them alike. `Pages` is the kind of keys and values, of layers with or
// without a window.

/** The pages of one sequence, in the order of the positions they hold. */
export class PageTable {
  /** The entry of a page that was given back is 0, and is never read. */
  readonly pages: number[];

  /** The first ``dead`` pages were given back because they lie behind the window. */
  constructor(public dead = 0) {
    this.pages = new Array<number>(dead).fill(0);
  }

  /** The pages that the sequence holds. */
  get live(): readonly number[] {
    return this.pages.slice(this.dead);
  }
}

/** A sequence. ``tables`` are what it holds of each kind. */
export interface Holder {
  readonly tables: readonly PageTable[];
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

/** The nodes of ``path`` have snapshots of the first ``length`` tokens of a sequence. */
export interface Prefix {
  readonly length: number;
  readonly path: readonly Node[];
}

/** A unit is a page, or a copy of a state. ``length`` counts the first tokens of a holder. */
export interface CacheKind {
  /** Units to copy on the device before the next step. */
  copies: [from: number, to: number][];
  /** The nodes by their snapshot, if only the prefix cache uses that; the one not used for longest is first. */
  readonly idle: Map<number, Node>;
  /** Whether a prefix needs the snapshots of all its nodes; otherwise only the last ones are read. */
  readonly isChain: boolean;
  /** How many units have no user. */
  readonly free: number;
  /** How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens. */
  unread(length: number): number;
  /** How many more units a holder can need for ``length`` tokens. */
  growth(holder: Holder, length: number): number;
  /** The same for a sequence that starts from a prefix, with the units that must not be evicted for it. */
  admission(prefix: Prefix, length: number): number;
  /** How many units `reserve` allocates. */
  missing(holder: Holder, start: number, length: number): number;
  /** Let a holder write its positions from ``start`` up to ``length``. The units must be free. */
  reserve(holder: Holder, start: number, length: number): void;
  /** Release what no position from ``length`` on reads. */
  trim(holder: Holder, length: number): void;
  /** Release everything. */
  drop(holder: Holder): void;
  /** Retain the holder's page ``index`` in a node. If the node has a snapshot already, the holder uses that. */
  snapshot(holder: Holder, node: Node, index: number): void;
  /** Let a holder of fewer tokens continue after a prefix in the cache. */
  restore(holder: Holder, prefix: Prefix): void;
  /** The node that shares the holder's page ``index``. */
  nodeOf(holder: Holder, index: number): Node | undefined;
  /** Remove a node's snapshot, if it has one. */
  forget(node: Node): void;
}
