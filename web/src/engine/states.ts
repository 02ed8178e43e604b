// States: a cache kind for what recurrent layers have made of all tokens so far, in one slot for a sequence.
//
// A state cannot go back, so a prefix is usable only where a snapshot of its state was kept. Nothing is copied for one: a
// row reads one slot and may write another, and the slot that it has read is the snapshot then, which no row writes. A
// running sequence holds a slot of its own, and at most one snapshot: the state from which it began, that of the last page
// border, or that before its drafts. The slots beyond one for each sequence are the budget of snapshots; those that only
// the prefix cache uses are evicted, the one not used for longest first.

import type { CacheKind, Holder, Node, Prefix } from "./cache_kind.js";
import { Units, isRemoved } from "./cache_kind.js";

export class StateTable {
  /** The sequence's own slot; -1 for none. */
  slot = -1;
  /** The slot of its snapshot, of the state after ``length`` tokens; both are -1 for none. */
  source = -1;
  length = -1;

  /** The slot that the sequence writes. */
  get live(): readonly number[] {
    return [this.slot];
  }

  /** The slots that the row at position ``start`` reads and writes. At position 0, none is read. */
  pair(start: number): readonly [read: number, write: number] {
    return [start === this.length ? this.source : this.slot, this.slot];
  }
}

/** ``size`` slots, the cache kind ``index``. A unit is a slot. */
export class States extends Units implements CacheKind {
  readonly isChain = false;
  readonly isExact = true;
  /** How many sequences continued after a snapshot of the prefix cache. */
  hits = 0;
  /** How many slots are the own ones of sequences. */
  #owned = 0;

  constructor(
    index: number,
    size: number,
    private readonly maxSequences: number,
    private readonly pageSize: number,
  ) {
    super(index, size);
  }

  /** How many more snapshots there may be, beside a slot for each sequence. */
  override get free(): number {
    return super.free - Math.max(0, this.maxSequences - this.#owned);
  }

  table(): StateTable {
    return new StateTable();
  }

  /** Only the state at the end is read. */
  unread(length: number): number {
    return Math.max(0, Math.ceil(length / this.pageSize) - 1);
  }

  /** None: each sequence has a slot of its own. */
  growth(): number {
    return 0;
  }

  admission(): number {
    return 0;
  }

  missing(holder: Holder, start: number, length: number, known: number): number {
    const table = this.#table(holder);
    const keeps = this.#keeps(table, start, length > known);
    // Only a conversation that is read from a file may find no slot.
    return (keeps && !this.#isAlone(table)) || (table.slot < 0 && super.free === 0) ? 1 : 0;
  }

  reserve(holder: Holder, start: number, length: number, known: number): void {
    const table = this.#table(holder);
    if (this.#keeps(table, start, length > known)) this.#keep(table, start);
    // The state of a page border is retained for the cache, until the sequence stops or comes to the next border.
    else if (table.length !== start && (table.length % this.pageSize > 0 || this.nodes.has(table.source)))
      this.#releaseSource(table);
    if (table.slot >= 0) return;
    table.slot = this.allocate();
    this.#owned++;
  }

  trim(): void {
    // All of a state is read.
  }

  /** The sequence continues after the state before its drafts. */
  rewind(holder: Holder): number {
    return Math.max(0, this.#table(holder).length);
  }

  drop(holder: Holder): void {
    const table = this.#table(holder);
    this.#releaseSource(table);
    if (table.slot < 0) return;
    this.release(table.slot);
    table.slot = -1;
    this.#owned--;
  }

  /** A sequence that goes on keeps its snapshot to itself; see `share`. */
  snapshot(holder: Holder, node: Node, _: number, length: number): void {
    if (this.#table(holder).slot < 0) this.share(holder, node, length);
  }

  /** Retain the holder's snapshot in a node that ends after ``length`` tokens, if it is one of that state. */
  share(holder: Holder, node: Node, length: number): void {
    const { source, length: kept } = this.#table(holder);
    if (kept === length && this.snapshotOf(node) === null && !this.nodes.has(source) && !isRemoved(node))
      this.cache(source, node);
  }

  /** The number of tokens whose state is the holder's snapshot; -1 for none. */
  kept(holder: Holder): number {
    return this.#table(holder).length;
  }

  /**
   * Make the last state of a holder, which stops after ``length`` tokens, its snapshot. False if one must be evicted
   * first.
   */
  settle(holder: Holder, length: number): boolean {
    const table = this.#table(holder);
    if (table.slot < 0 || table.length === length || length === 0) return true;
    if (this.free <= 0 && !this.#isAlone(table)) return false;
    this.#keep(table, length);
    return true;
  }

  restore(holder: Holder, { path, length }: Prefix): void {
    const slot = this.snapshotOf(path.at(-1));
    if (slot === null) return;
    const table = this.#table(holder);
    this.use(slot);
    this.#releaseSource(table);
    table.source = slot;
    table.length = length;
    this.hits++;
  }

  #table({ tables }: Holder): StateTable {
    return (tables[this.index] as StateTable | undefined) ?? new StateTable();
  }

  /**
   * Whether a row leaves the state before it as a snapshot: before drafts, and at a page border if there is room for one.
   */
  #keeps(table: StateTable, start: number, drafts: boolean): boolean {
    if (table.slot < 0 || start === 0 || start === table.length) return false;
    const hasRoom = this.free > 0 || this.idle.size > 0 || this.#isAlone(table);
    return drafts || (start % this.pageSize === 0 && hasRoom);
  }

  #keep(table: StateTable, position: number): void {
    this.#releaseSource(table);
    table.source = table.slot;
    table.slot = -1;
    table.length = position;
    this.#owned--;
  }

  /** Whether nobody else uses the sequence's snapshot, so that the next one replaces it. */
  #isAlone({ source }: StateTable): boolean {
    return this.users(source) === 1;
  }

  #releaseSource(table: StateTable): void {
    if (table.source < 0) return;
    this.release(table.source);
    table.source = -1;
    table.length = -1;
  }
}
