// A sequence: one request's tokens, the pages that hold their keys and values, and how far the device is with it.

import type { FinishReason, TokenRequest } from "./request.js";
import type { KeptSequence } from "./kept_sequence.js";

export type SequenceState = "waiting" | "running" | "finished";

/** Of a request, what the scheduler goes by. */
export type SequenceRequest = Pick<TokenRequest, "promptIds" | "maxTokens" | "priority" | "whenFull"> & {
  readonly stopTokenIds: ReadonlySet<number>;
  /** Whether each token must be read before the next can be asked for, as a constraint's mask depends on it. */
  readonly stepwise: boolean;
  /** Of how many last tokens of the prompt the log-probabilities are told. */
  readonly promptLogprobs: number;
  /** Where the sequence goes on from, and leaves its pages when it ends. */
  readonly kept: KeptSequence | null;
};

export class Sequence {
  state: SequenceState = "waiting";
  finishReason: FinishReason | null = null;
  /** All tokens that are known: the prompt, and those that came back from the device. */
  readonly tokens: number[];
  /** Pages in the order of the positions that they hold. */
  pages: number[] = [];
  /** Positions whose keys and values are in the pages, or will be once all that was handed out is done. */
  computed = 0;
  /** Sampled tokens that were not read back yet. */
  inFlight = 0;
  /** Tokens of the answer that came back. */
  generated = 0;
  /** Of the prompt's last tokens, those whose log-probabilities did not come back yet. */
  untold = 0;
  /** Of the prompt, the tokens whose keys and values were there at the start. */
  cachedTokens = 0;
  /** Its place among the running ones, which names its sampled token and its penalties on the device. -1 while it does not run. */
  slot = -1;
  /** When rows of it were last handed out: the number of the step. */
  lastStep = -1;

  constructor(
    readonly request: SequenceRequest,
    /** Unique, and rising with the order of arrival. */
    readonly id: number,
  ) {
    this.tokens = [...request.promptIds];
  }

  get priority(): number {
    return this.request.priority ?? 0;
  }

  /** Tokens, those on their way included. */
  get length(): number {
    return this.tokens.length + this.inFlight;
  }

  /** Positions that the next token waits for; 1 while it decodes. */
  get missing(): number {
    return this.length - this.computed;
  }

  /** The first position whose logits are wanted, for the log-probability of the token behind it or, as of the last position, for the next token. */
  get firstWanted(): number {
    return this.tokens.length - 1 - this.untold;
  }
}

/** Negative where ``a`` goes before ``b``: by priority, then by arrival. */
export function byRank(a: Sequence, b: Sequence): number {
  return b.priority - a.priority || a.id - b.id;
}
