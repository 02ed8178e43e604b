// Drafting: which answers have drafts, when an engine waits for them, and what happens if the drafter fails.

import type { Answer } from "../engine/answer.js";
import type { TokenRequest } from "../engine/request.js";
import { penalizes } from "../engine/resolved_sampling.js";
import type { Scheduler } from "../engine/scheduler.js";
import type { Sequence } from "../engine/sequence.js";
import type { Drafter, Guess } from "../engine/speculation.js";
import { DeviceError } from "../errors.js";

// A drafter that fails more often than this in a row is left out.
const MAX_FAILURES = 3;

export class Drafting {
  /** In a row. */
  #failures = 0;

  constructor(readonly drafter: Drafter) {}

  /** Whether each token of an answer must be read before its next one is scheduled. */
  needsTokens(request: TokenRequest): boolean {
    return this.drafter.pays === undefined && this.#speculates(request);
  }

  /** Whether no step may be submitted before the last one is read, because drafts pay now. */
  waits(scheduler: Scheduler, answers: ReadonlyMap<Sequence, Answer>): boolean {
    return this.drafter.pays?.(this.#guesses(scheduler, answers), scheduler.running.length) === true;
  }

  /** What to draft for the next step. */
  guesses(scheduler: Scheduler, answers: ReadonlyMap<Sequence, Answer>): readonly Guess[] {
    return this.#guesses(scheduler, answers).filter(({ sequence }) => sequence.inFlight === 0);
  }

  /**
   * If the drafter's device fails, answers continue, and it starts anew; after failures in a row they continue without
   * drafts until the model is loaded again.
   */
  async draft(guesses: readonly Guess[], running: number): Promise<void> {
    try {
      await this.drafter.draft(guesses, running);
      this.#failures = 0;
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.#failures++;
      this.drafter.reset();
      for (const { sequence } of guesses) sequence.drafts = [];
    }
  }

  /** The sequence has ended. */
  forget(sequence: Sequence): void {
    this.drafter.forget(sequence);
  }

  /** The sequences that can use drafts once none of their tokens is in flight. */
  #guesses({ config, running }: Scheduler, answers: ReadonlyMap<Sequence, Answer>): readonly Guess[] {
    const { maxSequences, maxRows = maxSequences } = config;
    if (this.#failures > MAX_FAILURES || maxRows === maxSequences) return [];
    // Sequences share the rows if their drafts must pay; otherwise each has its own.
    const limit = this.drafter.pays === undefined ? maxRows / maxSequences - 1 : maxRows - maxSequences;
    return running.flatMap((sequence) => {
      const answer = answers.get(sequence);
      if (answer === undefined || !this.#speculates(answer.request)) return [];
      const most = sequence.useful(limit, config);
      return most > 0 ? [{ sequence, sampling: answer.sampling, most }] : [];
    });
  }

  /**
   * Whether drafts of an answer are checked: not if the device updates its slot once a step, for penalties, a bias or a
   * mask, not if old tokens are dropped, and not with images that the drafter does not read.
   */
  #speculates({ constraint, logitProcessor, whenFull, images = [], sampling = {} }: TokenRequest): boolean {
    const isPlain = (constraint ?? logitProcessor) === undefined && typeof whenFull !== "object";
    const reads = this.drafter.readsImages || images.length === 0;
    return reads && isPlain && !penalizes(sampling) && (sampling.logitBias?.size ?? 0) === 0;
  }
}
