// The scheduler: which rows of which sequences the device computes next, and in which pages. Sequences flow in; steps flow out, and for each step
// that is done its tokens flow back in. It knows neither the device nor texts, and does the same on every runtime: tests/conformance/scheduler.json
// holds it to its decisions.
//
// Decoding sequences get a row each in every step; what is left of the step goes to prompts, in chunks and in turn. Steps are handed out before the
// tokens of earlier ones are known: a row may stand for "the token sampled last". When pages run out, cached ones go first, then what is kept of
// ended answers, then the sequence of lowest rank gives up its pages and computes them again later. No request fails for want of pages.

import { KeptSequence } from "./kept_sequence.js";
import { PagePool } from "./page_pool.js";
import { PrefixCache } from "./prefix_cache.js";
import type { FinishReason } from "./request.js";
import type { Sequence } from "./sequence.js";
import { byRank } from "./sequence.js";

/** ``maxTokens`` rows a step, ``maxSequences`` running at once. The pages must hold at least ``context`` tokens. */
export interface SchedulerConfig {
  readonly pageSize: number;
  readonly pages: number;
  readonly maxTokens: number;
  readonly maxSequences: number;
  readonly context: number;
}

/**
 * ``count`` positions of a sequence from ``start`` on; with ``sample``, the token after the last of them is wanted. After the ``told`` positions before
 * that one, or without ``sample`` the last ``told``, the log-probability of the prompt's own next token is. All these are sampled rows of the step.
 */
export interface Row {
  readonly sequence: Sequence;
  readonly start: number;
  readonly count: number;
  readonly told: number;
  readonly sample: boolean;
}

/** What the device does at once. ``copies`` are pages to copy before, [from, to]; ``admitted`` started to run since the last step. */
export interface Step {
  readonly number: number;
  readonly rows: readonly Row[];
  readonly copies: readonly (readonly [from: number, to: number])[];
  readonly admitted: readonly Sequence[];
  readonly preempted: readonly Sequence[];
}

export type SchedulerEvent =
  | {
      readonly type: "told";
      readonly sequence: Sequence;
      /** The prompt's tokens whose log-probabilities are there. */
      readonly tokenIds: readonly number[];
      /** Of the first of them, among the step's sampled rows. */
      readonly sample: number;
    }
  | { readonly type: "token"; readonly sequence: Sequence; readonly tokenId: number; /** Among the step's sampled rows. */ readonly sample: number }
  | { readonly type: "finished"; readonly sequence: Sequence };

interface OpenStep {
  readonly rows: Row[];
  readonly copies: [number, number][];
  budget: number;
  /** Rows that may be sampled beside one of each running sequence. */
  spare: number;
}

/** Where a sequence can start: positions that are computed already, in pages of the cache, or in those that were kept. */
interface Beginning {
  readonly computed: number;
  readonly from: "cache" | "kept";
  readonly pages: readonly number[];
}

export class Scheduler {
  readonly pool: PagePool;
  readonly cache: PrefixCache;
  // Least recently used first.
  readonly #kept = new Set<KeptSequence>();
  readonly #running: Sequence[] = [];
  readonly #waiting: Sequence[] = [];
  readonly #slots: number[];
  #stepNumber = 0;
  #openSteps = 0;
  // What happened since a step was handed out last.
  readonly #admitted: Sequence[] = [];
  readonly #preempted: Sequence[] = [];
  // A sequence must give up its pages, for which all its tokens must be known: no step is handed out until all are back.
  #draining = false;

  constructor(readonly config: SchedulerConfig) {
    this.pool = new PagePool(config.pages);
    this.cache = new PrefixCache(this.pool, config.pageSize);
    this.#slots = Array.from({ length: config.maxSequences }, (_, index) => config.maxSequences - 1 - index);
  }

  get running(): readonly Sequence[] {
    return this.#running;
  }

  get waiting(): readonly Sequence[] {
    return this.#waiting;
  }

  /** Queue a sequence. Its tokens must fit the context, unless it says what makes way. */
  add(sequence: Sequence): void {
    this.makeRoom(sequence);
    sequence.untold = Math.min(sequence.request.promptLogprobs, sequence.tokens.length - 1);
    this.enqueue(sequence);
  }

  /** A place for a conversation between two answers. */
  keep(from?: KeptSequence): KeptSequence {
    const kept = from?.clone() ?? new KeptSequence(this.pool);
    this.#kept.add(kept);
    return kept;
  }

  /** The conversation is over. */
  forget(kept: KeptSequence): void {
    kept.drop();
    this.#kept.delete(kept);
  }

  /** Pages for that many tokens, which the caller then uses; null where that would take them from running sequences. */
  takePages(tokens: number): number[] | null {
    const count = this.pagesFor(tokens);
    while (this.pool.free < count) {
      if (!this.cache.evict() && !this.dropKept(null)) return null;
    }
    return Array.from({ length: count }, () => this.pool.take());
  }

  /** The next step, or null: there is nothing to do before another step's tokens are back, or nothing at all. */
  next(): Step | null {
    if (this.#draining && this.#openSteps > 0) return null;
    this.#draining = false;
    const step: OpenStep = { rows: [], copies: [], budget: this.config.maxTokens, spare: 0 };
    for (const sequence of this.#running) this.makeRoom(sequence);
    const running = [...this.#running].sort(byRank);
    for (const sequence of running.filter(({ missing }) => missing === 1)) this.hand(step, sequence);
    while (this.admit(step));
    step.spare = this.config.maxSequences - this.#running.length;
    const decoding = new Set(step.rows.map(({ sequence }) => sequence));
    for (const sequence of this.#running.filter((other) => !decoding.has(other)).sort(byTurn)) this.hand(step, sequence);
    if (step.rows.length === 0) return null;
    this.#openSteps++;
    const admitted = this.#admitted.splice(0).filter(({ state }) => state === "running");
    return { number: this.#stepNumber++, rows: step.rows, copies: step.copies, admitted, preempted: this.#preempted.splice(0) };
  }

  /**
   * A step is done: ``tokenIds`` are those of its sampled rows, and those of told ones count for nothing. Steps are committed in the order in which they
   * were handed out.
   */
  commit(step: Step, tokenIds: ArrayLike<number>): readonly SchedulerEvent[] {
    this.#openSteps--;
    const events: SchedulerEvent[] = [];
    let next = 0;
    for (const { sequence, start, count, told, sample: isSampled } of step.rows) {
      const first = next;
      next += told + (isSampled ? 1 : 0);
      // A sequence that ended has rows on their way still.
      if (sequence.state === "finished") continue;
      if (told > 0) {
        const end = start + count + (isSampled ? 0 : 1);
        events.push({ type: "told", sequence, tokenIds: sequence.tokens.slice(end - told, end), sample: first });
        sequence.untold -= told;
      }
      if (!isSampled) continue;
      const sample = next - 1;
      const tokenId = tokenIds[sample] ?? -1;
      sequence.inFlight--;
      if (sequence.request.stopTokenIds.has(tokenId)) {
        this.finish(sequence, "stop");
        events.push({ type: "finished", sequence });
        continue;
      }
      sequence.tokens.push(tokenId);
      sequence.generated++;
      this.cachePages(sequence);
      events.push({ type: "token", sequence, tokenId, sample });
      if (sequence.generated >= this.mostTokens(sequence) || this.isFull(sequence)) {
        this.finish(sequence, "length");
        events.push({ type: "finished", sequence });
      }
    }
    return events;
  }

  /** End a sequence, whatever state it is in. Its pages go to what it keeps, or are let go. */
  finish(sequence: Sequence, reason: FinishReason): void {
    if (sequence.state === "finished") return;
    remove(sequence.state === "running" ? this.#running : this.#waiting, sequence);
    const { kept } = sequence.request;
    if (kept !== null && sequence.state === "running" && this.#kept.has(kept)) {
      const known = Math.min(sequence.computed, sequence.tokens.length);
      const pages = sequence.pages.splice(0, this.pagesFor(known));
      kept.put(sequence.tokens.slice(0, known), pages);
      this.touch(kept);
    }
    this.leave(sequence);
    sequence.state = "finished";
    sequence.finishReason = reason;
  }

  /** The device is gone and its pages with it: all sequences start again from the tokens that are known. Steps on their way are not to be committed. */
  reset(): void {
    for (const sequence of [...this.#running].sort(byRank)) this.suspend(sequence);
    this.cache.clear();
    for (const kept of this.#kept) kept.drop();
    this.#admitted.length = 0;
    this.#openSteps = 0;
    this.#draining = false;
  }

  /** Give a sequence its rows, as many as it misses and the step still takes. */
  private hand(step: OpenStep, sequence: Sequence): void {
    if (sequence.state !== "running" || !this.isReady(sequence)) return;
    if (sequence.missing > 1) this.adopt(sequence);
    this.unshare(step, sequence);
    const start = sequence.computed;
    // From the first position whose logits are wanted on, every row is a sampled one.
    const firstWanted = Math.max(start, sequence.firstWanted);
    const count = Math.min(sequence.missing, step.budget, this.config.context - start, firstWanted + 1 + step.spare - start);
    if (count <= 0 || !this.reserve(step, sequence, start + count)) return;
    const sample = start + count === sequence.length;
    const wanted = Math.max(0, start + count - firstWanted);
    const told = wanted - (sample ? 1 : 0);
    step.rows.push({ sequence, start, count, told, sample });
    step.budget -= count;
    step.spare -= Math.max(0, wanted - 1);
    sequence.computed += count;
    sequence.lastStep = this.#stepNumber;
    if (sample) sequence.inFlight++;
    this.cachePages(sequence);
  }

  /** Whether more can be computed now: neither the answer nor the context is full, and a stepwise sequence has seen its last token. */
  private isReady(sequence: Sequence): boolean {
    const { generated, inFlight, computed, request } = sequence;
    if (generated + inFlight >= this.mostTokens(sequence) || computed >= this.config.context) return false;
    return !(request.stepwise && inFlight > 0);
  }

  private mostTokens({ request }: Sequence): number {
    return request.maxTokens ?? Infinity;
  }

  /** Whether there is no position left to compute the last token at, and the answer ends there. */
  private isFull(sequence: Sequence): boolean {
    return sequence.tokens.length > this.config.context && !isShifting(sequence);
  }

  /** Make the best waiting sequence run. False where it has to wait, or none waits. */
  private admit(step: OpenStep): boolean {
    const [sequence] = this.#waiting;
    if (sequence === undefined || step.budget === 0 || this.#draining) return false;
    this.makeRoom(sequence);
    for (;;) {
      const beginning = this.beginning(sequence);
      if (this.#slots.length > 0 && this.hasPages(sequence, beginning)) {
        this.#waiting.shift();
        this.start(sequence, beginning);
        return true;
      }
      // Only a more important request takes another's place.
      const worst = this.lastOfRank(step);
      if (worst === undefined || worst.priority >= sequence.priority || !this.preempt(worst)) return false;
    }
  }

  /** Whether a sequence's known tokens find pages, beside those that the running ones need for theirs and one token more. */
  private hasPages({ tokens, request }: Sequence, { pages, from }: Beginning): boolean {
    // The pool holds a whole context, so one alone always fits.
    if (this.#running.length === 0) return true;
    // What it starts from is not there to be evicted.
    const idle = from === "cache" ? pages.filter((page) => this.pool.users(page) === 1).length : 0;
    const promised = this.#running.reduce((sum, other) => sum + Math.max(0, this.pagesFor(other.length + 1) - other.pages.length), 0);
    const needed = promised + this.pagesFor(tokens.length + 1) - pages.length;
    while (needed > this.pool.free + this.cache.evictable - idle) {
      if (!this.dropKept(request.kept)) return false;
    }
    return true;
  }

  private start(sequence: Sequence, { computed, from, pages }: Beginning): void {
    sequence.pages = [...pages];
    const { kept } = sequence.request;
    if (from === "kept") {
      kept?.take(pages.length);
    } else {
      for (const page of pages) this.pool.share(page);
      // What is kept instead when the sequence ends is longer.
      kept?.drop();
    }
    sequence.computed = computed;
    if (sequence.lastStep < 0) sequence.cachedTokens = computed;
    sequence.slot = this.#slots.pop() ?? -1;
    sequence.state = "running";
    this.#running.push(sequence);
    this.#admitted.push(sequence);
  }

  /** What is there of a sequence's tokens. Positions whose logits are wanted are always computed, as that of the last one. */
  private beginning({ tokens, request, firstWanted: most }: Sequence): Beginning {
    const pages = this.cache.match(tokens, Math.floor(most / this.config.pageSize));
    const inCache = pages.length * this.config.pageSize;
    const inKept = Math.min(commonLength(tokens, request.kept?.tokens ?? []), most);
    if (inKept <= inCache) return { computed: inCache, from: "cache", pages };
    return { computed: inKept, from: "kept", pages: request.kept?.pages.slice(0, this.pagesFor(inKept)) ?? [] };
  }

  /** Go on with pages that another sequence with the same beginning has filled in the meantime. */
  private adopt(sequence: Sequence): void {
    const { pageSize } = this.config;
    const { pages, tokens, computed } = sequence;
    if (computed !== pages.length * pageSize) return;
    const cached = this.cache.match(tokens, Math.floor(sequence.firstWanted / pageSize)).slice(pages.length);
    for (const page of cached) this.pool.share(page);
    pages.push(...cached);
    sequence.computed += cached.length * pageSize;
    if (sequence.generated === 0) sequence.cachedTokens += cached.length * pageSize;
  }

  /** Make the page that a sequence writes next its own: a copy where there is room for one, else the page is computed again. */
  private unshare(step: OpenStep, sequence: Sequence): void {
    const { pages } = sequence;
    const index = Math.floor(sequence.computed / this.config.pageSize);
    const from = pages[index];
    if (from === undefined || this.pool.users(from) === 1) return;
    const hasRoom = this.pool.free > 0 || this.cache.evict();
    if (hasRoom) {
      const to = this.pool.take();
      step.copies.push([from, to]);
      pages[index] = to;
    } else {
      pages.length = index;
      sequence.computed = index * this.config.pageSize;
    }
    this.pool.release(from);
  }

  /** Find pages for the first ``length`` positions. False where they must wait. */
  private reserve(step: OpenStep, sequence: Sequence, length: number): boolean {
    const { pages } = sequence;
    const missing = this.pagesFor(length) - pages.length;
    while (this.pool.free < missing) {
      if (this.cache.evict() || this.dropKept(null)) continue;
      const victim = this.lastOfRank(step);
      if (victim === undefined || !this.preempt(victim) || victim === sequence) return false;
    }
    for (let index = 0; index < missing; index++) pages.push(this.pool.take());
    return true;
  }

  /** Of the running sequences that are not in the step, the last by rank. */
  private lastOfRank(step: OpenStep): Sequence | undefined {
    const inStep = new Set(step.rows.map(({ sequence }) => sequence));
    return this.#running.filter((sequence) => !inStep.has(sequence)).sort(byRank).at(-1);
  }

  /** Take a sequence's pages and put it back into the queue. False where that must wait for steps on their way. */
  private preempt(victim: Sequence): boolean {
    if (this.#openSteps > 0) {
      this.#draining = true;
      return false;
    }
    this.suspend(victim);
    this.#preempted.push(victim);
    return true;
  }

  private suspend(sequence: Sequence): void {
    remove(this.#running, sequence);
    this.leave(sequence);
    sequence.computed = 0;
    sequence.inFlight = 0;
    this.enqueue(sequence);
  }

  /** Give back pages and slot. */
  private leave(sequence: Sequence): void {
    for (const page of sequence.pages.splice(0)) this.pool.release(page);
    if (sequence.slot >= 0) this.#slots.push(sequence.slot);
    sequence.slot = -1;
  }

  private enqueue(sequence: Sequence): void {
    sequence.state = "waiting";
    const index = this.#waiting.findIndex((other) => byRank(sequence, other) < 0);
    this.#waiting.splice(index < 0 ? this.#waiting.length : index, 0, sequence);
  }

  /** Where the context is full and the oldest tokens may go: let half of those go that are not to be kept. The rest is computed again. */
  private makeRoom(sequence: Sequence): void {
    const { whenFull } = sequence.request;
    const { tokens } = sequence;
    if (typeof whenFull !== "object" || sequence.inFlight > 0 || tokens.length <= this.config.context) return;
    while (tokens.length > this.config.context) tokens.splice(whenFull.keep, Math.ceil((tokens.length - whenFull.keep) / 2));
    for (const page of sequence.pages.splice(0)) this.pool.release(page);
    sequence.computed = 0;
  }

  /** Let others use the full pages of known tokens. */
  private cachePages({ tokens, pages, computed }: Sequence): void {
    this.cache.insert(tokens, pages, Math.floor(Math.min(computed, tokens.length) / this.config.pageSize));
  }

  /** Let go of the kept pages that were not used for longest, but for ``except``. */
  private dropKept(except: KeptSequence | null): boolean {
    for (const kept of this.#kept) {
      if (kept.pages.length === 0 || kept === except) continue;
      kept.drop();
      return true;
    }
    return false;
  }

  private touch(kept: KeptSequence): void {
    this.#kept.delete(kept);
    this.#kept.add(kept);
  }

  private pagesFor(tokens: number): number {
    return Math.ceil(tokens / this.config.pageSize);
  }
}

function isShifting({ request }: Sequence): boolean {
  return typeof request.whenFull === "object";
}

/** Negative where ``a``'s prompt goes before ``b``'s: by priority, then whoever waited longest for its turn. */
function byTurn(a: Sequence, b: Sequence): number {
  return b.priority - a.priority || a.lastStep - b.lastStep || a.id - b.id;
}

function commonLength(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length);
  for (let index = 0; index < length; index++) {
    if (a[index] !== b[index]) return index;
  }
  return length;
}

function remove<T>(items: T[], item: T): void {
  const index = items.indexOf(item);
  if (index >= 0) items.splice(index, 1);
}
