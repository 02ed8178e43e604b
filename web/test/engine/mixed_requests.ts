// Requests of all kinds that a test runs together: prompts of many lengths, greedy and seeded, penalized, biased and
// constrained answers.

import type { Constraint, SamplingOptions, TokenRequest } from "../../src/engine/request.js";
import { VOCAB } from "./fake_model.js";
import { mulberry32 } from "./mulberry32.js";

const SAMPLINGS: readonly SamplingOptions[] = [
  {},
  { temperature: 0.8 },
  { repetitionPenalty: 1.3 },
  { temperature: 0.7, frequencyPenalty: 0.5, presencePenalty: 0.2 },
  { logitBias: new Map([[3, 4]]) },
  { temperature: 1, presencePenalty: 0.4, logitBias: new Map([[5, 3]]) },
];

/** Allows the tokens of one parity, and the other parity for the next token: its state depends on all tokens so far. */
function alternating(): Constraint {
  let seen = 0;
  return {
    mask: () => Int32Array.of(seen % 2 === 0 ? 0b0101_0101_0101_0100 : 0b1010_1010_1010_1010),
    accept: (id) => (seen += id % 2 === seen % 2 ? 1 : NaN),
    finished: false,
    complete: false,
    dispose: () => undefined,
  };
}

/** Each call returns the same requests, with new constraints. Every fourth has the prompt of the one before it. */
export function mixedRequests(count: number): readonly TokenRequest[] {
  const draw = mulberry32(count);
  const below = (end: number): number => Math.floor(draw() * end);
  let promptIds: readonly number[] = [];
  return Array.from({ length: count }, (_, index) => {
    const length = [1, 3, 4, 9, 17, 30][below(6)] ?? 1;
    const fresh = Array.from({ length }, () => 1 + below(VOCAB - 1));
    promptIds = index % 4 === 3 ? promptIds : fresh;
    return {
      promptIds,
      maxTokens: 8 + below(12),
      priority: below(3),
      sampling: { ...SAMPLINGS[index % SAMPLINGS.length], seed: below(2 ** 32) },
      constraint: index % 5 === 4 ? alternating() : undefined,
    };
  });
}
