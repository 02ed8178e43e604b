// Answers of the API with drafts are those without: with stop strings, several choices, log-probabilities, seeds, and an
// end of the context within accepted drafts.

import { expect, test } from "vitest";

import { Completions } from "../../src/api/completions.js";
import type { CompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import { DraftAssistant, DraftHeads } from "../../src/drafts/draft_heads.js";
import { Drafting } from "../../src/drafts/drafting.js";
import type { Drafter } from "../../src/engine/speculation.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { modelOf } from "../api/fake_model.js";
import { OTHERS, PROMPT, onePool } from "../engine/engine_set_up.js";
import { STOP, VOCAB } from "../engine/fake_model.js";
import { FakeRunner } from "../engine/fake_runner.js";

const LIMITS = { tokens: 24, sequences: 4, rows: 20, pageSize: 4, context: 64, vocabSize: VOCAB, draftPages: 40 };

function completionsOn(runner: FakeRunner, drafter?: Drafter): Completions {
  const drafting = drafter && new Drafting(drafter);
  const engine = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP] }, null, undefined, () => drafting);
  return new Completions(modelOf(engine, { context: LIMITS.context }));
}

/** What of an answer does not depend on how it was computed. */
async function answerOf(completions: Completions, params: CompletionCreateParamsNonStreaming): Promise<unknown> {
  const { choices, usage } = await completions.create(params);
  return { choices, prompt: usage.prompt_tokens, completion: usage.completion_tokens };
}

const DRAFTERS: Readonly<Record<string, (runner: FakeRunner) => Drafter>> = {
  heads: (runner) => new DraftHeads(runner),
  "an assistant": (runner) => new DraftAssistant(Object.assign(runner, { hasAssistant: true })),
};

test.each(Object.keys(DRAFTERS).flatMap((name) => [40, 17].map((pages) => [name, pages] as const)))(
  "answers with drafts of %s and %i pages are those without",
  async (name, pages) => {
    const limits = { ...LIMITS, groups: onePool(pages) };
    const plain = { prompt: PROMPT, max_tokens: 12, seed: 4, temperature: 0 } as const;
    const { choices } = await completionsOn(new FakeRunner(limits)).create(plain);
    const stop = choices[0]?.text.slice(6, 8);
    const requests: readonly CompletionCreateParamsNonStreaming[] = [
      { ...plain, logprobs: 3 },
      { ...plain, stop, logprobs: 1 },
      { ...plain, stop, include_stop_str_in_output: true },
      { ...plain, n: 3, temperature: 1, logprobs: 2 },
      { ...plain, prompt: [PROMPT, ...OTHERS], n: 2, temperature: 0.7, stop: stop?.[0] },
      { ...plain, echo: true, logprobs: 1 },
      // The context ends it.
      { ...plain, prompt: [...PROMPT, ...PROMPT, ...PROMPT, ...PROMPT], max_tokens: null },
      { ...plain, temperature: 0.5, frequency_penalty: 0.4, logit_bias: { 7: 2 } },
    ];
    const expected: unknown[] = [];
    for (const params of requests) expected.push(await answerOf(completionsOn(new FakeRunner(limits)), params));
    expect(expected[1]).toMatchObject({ choices: [{ finish_reason: "stop" }] });
    const runner = new FakeRunner(limits);
    const completions = completionsOn(runner, DRAFTERS[name]?.(runner));
    expect(await Promise.all(requests.map((params) => answerOf(completions, params)))).toEqual(expected);
    const drafted = runner.batches.filter(({ kept_rows }) => kept_rows?.length);
    expect(drafted.length).toBeGreaterThan(9);
  },
);
