// Speculative decoding: tokens are guessed cheaply, and several of them are checked in one step. Leviathan et al. 2023.
//
// The step samples a token after each draft, with the random number that this token would have been drawn with anyway. A
// draft is accepted if it is the token that was sampled in its place. So the answer is, token for token, the one without
// drafts, greedy or sampled; only the number of tokens in a step depends on the guesses. drafts.js has the drafters.

import type { Sampling } from "./resolved_sampling.js";
import type { Sequence } from "./sequence.js";

/** A sequence that can use drafts, how it samples, and how many it can use at ``most``: at least one. */
export interface Guess {
  readonly sequence: Sequence;
  readonly sampling: Sampling;
  readonly most: number;
}

export interface Drafter {
  /** Whether it guesses the answers to pictures and sounds as it guesses those to texts. */
  readonly readsImages: boolean;
  /**
   * Whether drafts pay now, if ``running`` sequences decode. While they do, each step is read before the next one is
   * submitted, because drafts need the tokens. A drafter without this method drafts always.
   */
  pays?(guesses: readonly Guess[], running: number): boolean;
  /** Set the ``drafts`` of each sequence, from its known tokens. Throws DeviceError. */
  draft(guesses: readonly Guess[], running: number): Promise<void>;
  /** The sequence has ended. */
  forget(sequence: Sequence): void;
  /** A failure left the drafter's state unknown: start anew. */
  reset(): void;
}
