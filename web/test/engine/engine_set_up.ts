// Engines over the fake runner, the prompts that tests give them, and their answers.

import type { AnswerEnd, GeneratedToken, TokenRequest } from "../../src/engine/request.js";
import type { StepRunner } from "../../src/engine/step_runner.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import type { PageGroup } from "../../src/runtime/page_groups.js";
import { STOP, VOCAB } from "./fake_model.js";

export const onePool = (pages: number): readonly PageGroup[] => [{ pages, window: Infinity }];
/** One group without a window, one with a window of 6 tokens, and both. */
export const GROUPS: readonly (readonly PageGroup[])[] = [
  onePool(16),
  [{ pages: 12, window: 6 }],
  [
    { pages: 16, window: Infinity },
    { pages: 12, window: 6 },
  ],
];
export const LIMITS: RunnerLimits = {
  tokens: 8,
  sequences: 4,
  groups: onePool(16),
  pageSize: 4,
  context: 64,
  vocabSize: VOCAB,
};
// The fake model gives long answers to these prompts.
export const PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14];
export const OTHERS = [
  [10, 12, 15],
  [15, 7, 12, 13],
];

export function engineOn(runner: StepRunner, replace: (() => Promise<StepRunner>) | null = null): TokenEngine {
  return new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP] }, replace);
}

export async function collect(
  tokens: AsyncGenerator<GeneratedToken, AnswerEnd>,
): Promise<{ ids: number[]; tokens: GeneratedToken[]; completion: AnswerEnd }> {
  const all: GeneratedToken[] = [];
  for (;;) {
    const { done, value } = await tokens.next();
    if (done === true) return { ids: all.map(({ tokenId }) => tokenId), tokens: all, completion: value };
    all.push(value);
  }
}

export function answer(engine: TokenEngine, request: Partial<TokenRequest> = {}): ReturnType<typeof collect> {
  return collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 6, ...request }));
}
