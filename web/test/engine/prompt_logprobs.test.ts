import fc from "fast-check";
import { expect, test } from "vitest";

import type { TokenRequest } from "../../src/engine/request.js";
import type { RetainedSequence } from "../../src/engine/sequence.js";
import { newConversation } from "../../src/engine/sequence.js";
import type { TokenEngine } from "../../src/engine/token_engine.js";
import { LIMITS, OTHERS, PROMPT, answer, collect, engineOn, onePool } from "./engine_set_up.js";
import { VOCAB, answerOf, logprobsOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";

/** An answer with the log-probabilities of its prompt. ``before``: the number of reports before its first token. */
async function answerWithLogprobs(
  engine: TokenEngine,
  request: Partial<TokenRequest>,
  retained: RetainedSequence | null = null,
) {
  const reports: (readonly number[])[] = [];
  const tokens = engine.generateTokens(
    {
      promptIds: PROMPT,
      maxTokens: 6,
      ...request,
      onPromptLogprobs: (tokens) => reports.push(tokens.map(({ logprob }) => logprob ?? NaN)),
    },
    retained,
  );
  const first = await tokens.next();
  const before = reports.length;
  const { ids, completion } = await collect(tokens);
  return { ids: first.done === true ? ids : [first.value.tokenId, ...ids], completion, reports, before };
}

function expectExact(reports: readonly (readonly number[])[], promptIds: readonly number[], count: number): void {
  const exact = promptIds
    .map((id, index) => logprobsOf(promptIds.slice(0, index))[id] ?? NaN)
    .slice(promptIds.length - Math.min(count, promptIds.length - 1));
  expect(reports).toEqual([exact.map((value) => expect.closeTo(value, 4) as number)]);
}

test("a prompt's log-probabilities arrive before the first token and do not change the answer", async () => {
  const runner = new FakeRunner(LIMITS);
  const alone = await answerWithLogprobs(engineOn(runner), { promptLogprobs: 5 });
  expectExact(alone.reports, PROMPT, 5);
  expect([alone.before, alone.ids]).toEqual([1, answerOf(PROMPT, 6, 64).tokens]);
  // The maximum number of rows is sampled at once, and none of these rows writes to a slot.
  expect(runner.batches.slice(0, 2).map(({ sample_slots }) => sample_slots)).toEqual([
    [-1, 0, -1, 0, -1, 0, -1, 0],
    [-1, 0, 0, 0],
  ]);
  const engine = engineOn(new FakeRunner(LIMITS));
  const prompts = [PROMPT, ...OTHERS, [7]];
  const sampling = { temperature: 1, seed: 6, presencePenalty: 1, logitBias: new Map([[3, 1]]) };
  const all = await Promise.all(
    prompts.map((promptIds) => answerWithLogprobs(engine, { promptIds, sampling, promptLogprobs: 32 })),
  );
  for (const [index, { reports, before, ids, completion }] of all.entries()) {
    const promptIds = prompts[index] ?? [];
    expectExact(reports, promptIds, 32);
    const plain = await answer(engineOn(new FakeRunner(LIMITS)), { promptIds, sampling });
    expect([before, ids, completion]).toEqual([1, plain.ids, plain.completion]);
  }
});

test("cached tokens of a prompt do not change its log-probabilities", async () => {
  const engine = engineOn(new FakeRunner(LIMITS));
  const retained = newConversation();
  await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 3 }, retained));
  for (const [sequence, cached] of [
    [null, 4],
    [retained, 5],
  ] as const) {
    const { reports, completion } = await answerWithLogprobs(engine, { promptLogprobs: 4 }, sequence);
    expectExact(reports, PROMPT, 4);
    expect(completion.cachedTokens).toBe(cached);
  }
});

test("an engine that samples only last rows answers without log-probabilities of prompts", async () => {
  const { reports, ids } = await answerWithLogprobs(engineOn(new FakeRunner(LIMITS, Infinity, false)), {
    promptLogprobs: 4,
  });
  expect([reports, ids]).toEqual([[], answerOf(PROMPT, 6, 64).tokens]);
});

test("random prompts get the same log-probabilities with too few pages and on a lost device", async () => {
  const one = fc.record({
    promptIds: fc.array(fc.integer({ min: 1, max: 15 }), { minLength: 1, maxLength: 20 }),
    promptLogprobs: fc.integer({ min: 0, max: 32 }),
    priority: fc.integer({ min: 0, max: 1 }),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.array(one, { minLength: 1, maxLength: 6 }),
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 12 }),
      async (requests, sequences, loseAfter) => {
        const limits = { tokens: 7, sequences, groups: onePool(7), pageSize: 4, context: 28, vocabSize: VOCAB };
        const engine = engineOn(new FakeRunner(limits, loseAfter), () => Promise.resolve(new FakeRunner(limits)));
        const answers = await Promise.all(requests.map((request) => answerWithLogprobs(engine, request)));
        answers.forEach(({ reports, ids }, index) => {
          const { promptIds, promptLogprobs } = requests[index] ?? { promptIds: [], promptLogprobs: 0 };
          expect(ids).toEqual(answerOf(promptIds, 6, limits.context).tokens);
          if (promptLogprobs === 0) expect(reports).toEqual([]);
          else expectExact(reports, promptIds, promptLogprobs);
        });
      },
    ),
    { numRuns: 200 },
  );
});
