// A step: the work that the device computes at once. The scheduler builds steps, and commits them when their tokens are
// read back.

import type { PageCopies } from "../runtime/page_groups.js";
import type { Sequence } from "./sequence.js";

/**
 * ``length`` positions of a sequence, from ``start`` on; the last ``numSampled`` of them are sampled. The first
 * ``promptLogprobs`` sampled positions give log-probabilities of the prompt's own tokens. The others sample the answer:
 * one token after the last known one, and one after each of the ``drafts``, which are the last positions then.
 */
export interface Row {
  readonly sequence: Sequence;
  readonly start: number;
  readonly length: number;
  readonly numSampled: number;
  readonly promptLogprobs: number;
  readonly drafts: readonly number[];
}

/** Whether a row samples the answer. */
export function samplesAnswer({ numSampled, promptLogprobs }: Row): boolean {
  return numSampled > promptLogprobs;
}

/**
 * ``copies`` are, by cache kind, what to copy first. ``admitted`` and ``preempted``: the sequences since the previous
 * step.
 */
export interface Step {
  readonly rows: readonly Row[];
  readonly copies: PageCopies;
  readonly admitted: readonly Sequence[];
  readonly preempted: readonly Sequence[];
}

/**
 * A step being built. ``budget`` positions and ``draftBudget`` drafts still fit; ``numSampled`` rows are sampled so far.
 */
export class OpenStep {
  readonly rows: Row[] = [];
  numSampled = 0;

  constructor(
    readonly number: number,
    public budget: number,
    public draftBudget: number,
  ) {}

  add(row: Row): void {
    this.rows.push(row);
    this.budget -= row.length;
    this.numSampled += row.numSampled;
  }

  has(sequence: Sequence): boolean {
    return sequence.lastStep === this.number;
  }
}

/** The effect of a step on a sequence. ``sample`` is the index among the step's sampled rows. */
export type SchedulerEvent =
  /** The log-probability of the prompt's ``tokenId`` can be read at ``sample``. */
  | { readonly type: "prompt_logprob"; readonly sequence: Sequence; readonly tokenId: number; readonly sample: number }
  | { readonly type: "token"; readonly sequence: Sequence; readonly tokenId: number; readonly sample: number }
  /** ``end``: the sampled token that ended the answer and is not part of it, if one did. */
  | {
      readonly type: "finished";
      readonly sequence: Sequence;
      readonly end?: { readonly tokenId: number; readonly sample: number };
    };
