// The scheduler: decides which positions of which sequences each step computes, and in which pages. It knows neither
// the device nor text. It makes the same decisions in every runtime; tests/conformance/scheduler.json contains them.
//
// Every decoding sequence gets a row in each step; the rest of the step's budget goes to prompts, in chunks and in
// turns. Steps are built before the tokens of earlier ones are known: a row may continue from "the token sampled last".
// When pages run out, cached pages are evicted first; then the running sequence of the lowest rank is preempted and
// computed again later. No request fails for lack of pages.

import type { PageGroup } from "../runtime/page_groups.js";
import { KvCache } from "./kv_cache.js";
import type { FinishReason } from "./request.js";
import type { Sequence } from "./sequence.js";
import { byTurn, insertByRank, remove } from "./sequence.js";
import type { Row, SchedulerEvent, Step } from "./step.js";
import { OpenStep, samplesAnswer } from "./step.js";

/**
 * ``maxTokens`` is the maximum number of positions in a step, ``maxSequences`` that of running sequences. The pages of
 * each group must be enough for one sequence of ``context`` tokens, as `pagesOfSequence` counts them. A step samples at
 * most ``maxRows`` rows, by default one per sequence; further rows can check drafts.
 */
export interface SchedulerConfig {
  readonly pageSize: number;
  readonly groups: readonly PageGroup[];
  readonly maxTokens: number;
  readonly maxSequences: number;
  readonly maxRows?: number;
  readonly context: number;
  /**
   * The slots for states of recurrent layers, 0 if the model has none, as by default. Those beyond ``maxSequences`` are
   * for snapshots.
   */
  readonly states?: number;
}

export class Scheduler {
  readonly kv: KvCache;
  // Both by rank.
  readonly running: Sequence[] = [];
  readonly waiting: Sequence[] = [];
  /** The drafts that were checked, and those that were right. */
  drafted = 0;
  accepted = 0;
  readonly #maxRows: number;
  readonly #maxDrafts: number;
  readonly #slots: number[];
  #stepNumber = 0;
  #openSteps = 0;
  // Since the last step.
  readonly #admitted: Sequence[] = [];
  readonly #preempted: Sequence[] = [];
  // A sequence must be preempted, but steps are open: no further step is built until they are committed.
  #draining = false;
  // At most one sequence, whose next image did not fit the last step: the next one begins with it.
  #cramped: Sequence[] = [];

  constructor(readonly config: SchedulerConfig) {
    const { maxSequences, maxTokens, maxRows = maxSequences } = config;
    this.kv = new KvCache(config);
    this.#maxRows = maxRows;
    this.#maxDrafts = Math.max(0, Math.min(maxRows, maxTokens) - maxSequences);
    this.#slots = Array.from({ length: maxSequences }, (_, index) => maxSequences - 1 - index);
  }

  /**
   * Queue a sequence, with the first tokens of its answer if an earlier run has generated them. Its prompt must fit the
   * context, unless it has a context shift.
   */
  add(sequence: Sequence, begun: readonly number[] = []): void {
    this.#shiftContext(sequence);
    for (const tokenId of begun) {
      sequence.append(tokenId);
      this.#shiftContext(sequence);
    }
    // The first token of a prompt has no log-probability.
    sequence.promptLogprobs.pending = Math.min(sequence.promptLogprobs.pending, sequence.tokens.length - 1);
    this.#enqueue(sequence);
  }

  /**
   * The next step, or null: open steps must be committed first, or there is nothing to do. ``budget``: its positions at
   * most, enough for a row of each sequence, for its drafts, and for an image that is read as a whole.
   */
  next(budget = this.config.maxTokens): Step | null {
    if (this.#draining && this.#openSteps > 0) return null;
    this.#draining = false;
    const step = new OpenStep(this.#stepNumber, budget, this.#maxDrafts);
    this.#decode(step);
    this.#admit(step);
    this.#prefill(step);
    return step.rows.length > 0 ? this.#close(step) : null;
  }

  /**
   * A step is done: ``tokenIds`` are those of its sampled rows. Steps are committed in the order in which they were
   * built.
   */
  commit(step: Step, tokenIds: ArrayLike<number>): readonly SchedulerEvent[] {
    this.#openSteps--;
    const events: SchedulerEvent[] = [];
    let first = 0;
    for (const row of step.rows) {
      // A sequence that has ended may still have rows in open steps.
      if (row.numSampled > 0 && row.sequence.state === "running") this.#commitRow(row, tokenIds, first, events);
      first += row.numSampled;
    }
    return events;
  }

  /** End a sequence in any state and release what it holds. */
  finish(sequence: Sequence, reason: FinishReason): void {
    if (sequence.state === "finished") return;
    if (sequence.state === "running") this.#stop(sequence);
    else remove(this.waiting, sequence);
    sequence.state = "finished";
    sequence.finishReason = reason;
  }

  /**
   * The contents of all pages are lost: every sequence starts again from its known tokens. Open steps must not be
   * committed.
   */
  reset(): void {
    for (const sequence of [...this.running]) this.#suspend(sequence);
    this.kv.prefixes.clear();
    this.#admitted.length = 0;
    this.#openSteps = 0;
    this.#draining = false;
  }

  // --- building a step ----------------------------------------------------------------------------------------

  /** Give a row to each sequence whose prompt is computed. */
  #decode(step: OpenStep): void {
    for (const sequence of this.running) this.#shiftContext(sequence);
    const decoding = this.running.filter(({ missing }) => missing === 1);
    for (const sequence of [...this.#cramped.splice(0), ...decoding]) this.#schedule(step, sequence);
  }

  /** Start waiting sequences, in their order, while there is room. */
  #admit(step: OpenStep): void {
    for (let [sequence] = this.waiting; sequence !== undefined; [sequence] = this.waiting) {
      if (step.budget === 0 || this.#draining) return;
      this.#shiftContext(sequence);
      if (!this.#start(step, sequence)) return;
    }
  }

  /** Give the rest of the budget to prompts, in turn. */
  #prefill(step: OpenStep): void {
    for (const sequence of this.running.filter((other) => !step.has(other)).sort(byTurn))
      this.#schedule(step, sequence);
  }

  #close({ rows }: OpenStep): Step {
    this.#openSteps++;
    this.#stepNumber++;
    const admitted = this.#admitted.splice(0).filter(({ state }) => state === "running");
    return { rows, copies: this.kv.takeCopies(), admitted, preempted: this.#preempted.splice(0) };
  }

  /** Give a sequence a row with all of its missing positions that fit. */
  #schedule(step: OpenStep, sequence: Sequence): void {
    if (sequence.state !== "running" || !sequence.isReady(this.config.context)) return;
    this.kv.prepare(sequence);
    const { computed: start, missing, promptLogprobs } = sequence;
    // Positions before the first one that is sampled: for log-probabilities of the prompt, or for the next token.
    const unsampled = missing - 1 - promptLogprobs.pending;
    const most = Math.min(missing, step.budget, this.config.context - start, unsampled + 1 + this.#freeRows(step));
    const end = this.kv.rowEnd(sequence, start + most);
    const length = (sequence.params.images?.end(start, end) ?? end) - start;
    if (length === 0 && end > start) this.#cramped = [sequence];
    if (length <= 0 || !this.#reserve(step, sequence, start + length)) return;
    const sample = length === missing ? 1 : 0;
    const numSampled = Math.max(0, length - unsampled);
    const logprobRows = numSampled - sample;
    promptLogprobs.schedule(logprobRows);
    if (logprobRows > 0) step.draftBudget = Math.max(0, Math.min(step.draftBudget, this.#freeRows(step) - logprobRows));
    const drafts = sample === 1 && sequence.drafts.length > 0 ? this.#takeDrafts(step, sequence, length) : [];
    step.add({
      sequence,
      start,
      length: length + drafts.length,
      numSampled: numSampled + drafts.length,
      promptLogprobs: logprobRows,
      drafts,
    });
    sequence.computed = start + length + drafts.length;
    sequence.inFlight += sample;
    sequence.lastStep = step.number;
    this.kv.cachePages(sequence);
  }

  /**
   * The number of rows that can still be sampled, after the rows of the step and one row for each running sequence that
   * is not in it.
   */
  #freeRows(step: OpenStep): number {
    return this.#maxRows - step.numSampled - (this.running.length - step.rows.length);
  }

  /** The drafts that the step checks after ``count`` positions of a sequence. They may evict cached pages at most. */
  #takeDrafts(step: OpenStep, sequence: Sequence, count: number): readonly number[] {
    const end = sequence.computed + count;
    let drafts = sequence.takeDrafts(Math.min(step.draftBudget, step.budget - count, this.config.context - end));
    while (!this.kv.reserve(sequence, end + drafts.length)) drafts = drafts.slice(0, -1);
    step.draftBudget -= drafts.length;
    return drafts;
  }

  /** Start the first waiting sequence, preempting those of lower priority. False if it has to wait. */
  #start(step: OpenStep, sequence: Sequence): boolean {
    for (;;) {
      const prefix = this.kv.findPrefix(sequence);
      // One sequence alone always fits: the pages hold a full context.
      if (this.#slots.length > 0 && (this.running.length === 0 || this.kv.fits(sequence, prefix, this.running))) {
        remove(this.waiting, sequence);
        this.kv.start(sequence, prefix);
        this.#run(sequence);
        return true;
      }
      const victim = this.#lowestRank(step);
      if (victim === undefined || victim.priority >= sequence.priority || !this.#preempt(victim)) return false;
    }
  }

  /**
   * Find pages for the first ``length`` positions, preempting other sequences if necessary. False if this one has to
   * wait.
   */
  #reserve(step: OpenStep, sequence: Sequence, length: number): boolean {
    while (!this.kv.reserve(sequence, length)) {
      const victim = this.#lowestRank(step);
      if (victim === undefined || !this.#preempt(victim) || victim === sequence) return false;
    }
    return true;
  }

  /** The last running sequence by rank that is not in the step. */
  #lowestRank(step: OpenStep): Sequence | undefined {
    return this.running.findLast((sequence) => !step.has(sequence));
  }

  /** Stop a sequence and queue it again. False if open steps must be committed first. */
  #preempt(victim: Sequence): boolean {
    if (this.#openSteps > 0) {
      this.#draining = true;
      return false;
    }
    this.#suspend(victim);
    this.#preempted.push(victim);
    return true;
  }

  /** Drop old tokens of a sequence that has outgrown the context, if it allows that. */
  #shiftContext(sequence: Sequence): void {
    const { params, tokens, inFlight } = sequence;
    const { context } = this.config;
    if (params.contextShift === null || inFlight > 0 || tokens.length <= context) return;
    const { keep } = params.contextShift;
    while (tokens.length > context) tokens.splice(keep, Math.ceil((tokens.length - keep) / 2));
    this.kv.restart(sequence);
  }

  // --- starting and stopping ----------------------------------------------------------------------------------

  #run(sequence: Sequence): void {
    sequence.state = "running";
    sequence.slot = this.#slots.pop() ?? -1;
    insertByRank(this.running, sequence);
    this.#admitted.push(sequence);
  }

  #stop(sequence: Sequence): void {
    remove(this.running, sequence);
    this.kv.release(sequence);
    this.#slots.push(sequence.slot);
    sequence.slot = -1;
  }

  /** Stop a sequence and queue it again, to be computed from its known tokens. */
  #suspend(sequence: Sequence): void {
    this.#stop(sequence);
    sequence.computed = 0;
    sequence.inFlight = 0;
    sequence.promptLogprobs.restart();
    this.#enqueue(sequence);
  }

  #enqueue(sequence: Sequence): void {
    sequence.state = "waiting";
    insertByRank(this.waiting, sequence);
  }

  // --- reading a step -----------------------------------------------------------------------------------------

  /** Read the sampled tokens of a row. ``first`` is the index of the first of them among the step's. */
  #commitRow(row: Row, tokenIds: ArrayLike<number>, first: number, events: SchedulerEvent[]): void {
    const { sequence, promptLogprobs, drafts } = row;
    if (promptLogprobs > 0) {
      sequence.promptLogprobs.commit(promptLogprobs);
      // A row at position p is about the token at p + 1.
      const after = row.start + row.length - row.numSampled + 1;
      const tokens = sequence.tokens.slice(after, after + promptLogprobs);
      tokens.forEach((tokenId, index) =>
        events.push({ type: "prompt_logprob", sequence, tokenId, sample: first + index }),
      );
    }
    if (!samplesAnswer(row)) return;
    sequence.inFlight--;
    sequence.passes++;
    const sample = first + promptLogprobs;
    const wrong = drafts.findIndex((draft, index) => draft !== tokenIds[sample + index]);
    const accepted = wrong < 0 ? drafts.length : wrong;
    this.kv.rewind(sequence, sequence.computed - (drafts.length - accepted));
    for (const counts of [this, sequence]) {
      counts.drafted += drafts.length;
      counts.accepted += accepted;
    }
    for (let index = 0; index <= accepted; index++)
      if (!this.#append(sequence, tokenIds[sample + index] ?? -1, sample + index, events)) return;
  }

  /** Read a sampled token. False if it ends the sequence. */
  #append(sequence: Sequence, tokenId: number, sample: number, events: SchedulerEvent[]): boolean {
    if (sequence.params.stopTokenIds.has(tokenId)) {
      this.finish(sequence, "stop");
      events.push({ type: "finished", sequence, end: { tokenId, sample } });
      return false;
    }
    sequence.append(tokenId);
    this.kv.cachePages(sequence);
    events.push({ type: "token", sequence, tokenId, sample });
    if (!sequence.isComplete(this.config.context)) return true;
    this.finish(sequence, "length");
    events.push({ type: "finished", sequence });
    return false;
  }
}
