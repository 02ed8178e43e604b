// Speculative decoding: answers are the same as without it, whatever the drafts are; and the drafts themselves.

import { expect, test } from "vitest";

import { AdaptiveDrafter } from "../../src/drafts/adaptive_drafter.js";
import { DraftAssistant, DraftHeads } from "../../src/drafts/draft_heads.js";
import type { DraftRunner } from "../../src/drafts/draft_model.js";
import { DraftModel } from "../../src/drafts/draft_model.js";
import { Drafting } from "../../src/drafts/drafting.js";
import { NgramDrafter } from "../../src/drafts/ngram_drafter.js";
import { resolveSampling } from "../../src/engine/resolved_sampling.js";
import { PLAIN, Sequence, forkOf, newConversation } from "../../src/engine/sequence.js";
import type { Drafter, Guess } from "../../src/engine/speculation.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { DeviceError } from "../../src/errors.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import type { StepResult } from "../../src/runtime/results.js";
import { OTHERS, PROMPT, answer, collect, engineOn, onePool } from "./engine_set_up.js";
import { STOP, VOCAB, answerOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";
import { mixedRequests } from "./mixed_requests.js";

const LIMITS: RunnerLimits = {
  tokens: 24,
  sequences: 4,
  rows: 20,
  groups: onePool(24),
  pageSize: 4,
  context: 64,
  vocabSize: VOCAB,
};

function speculating(runner: FakeRunner, drafter: Drafter): TokenEngine {
  const model = { vocabSize: VOCAB, endTokenIds: [STOP] };
  const replace = (): Promise<FakeRunner> => Promise.resolve(new FakeRunner(runner.limits));
  const drafting = new Drafting(drafter);
  return new TokenEngine(runner, model, replace, undefined, () => drafting);
}

/** A small model that differs from the large one in many tokens: with an adapter in slot -1 each token counts as another. */
function otherModel(limits: RunnerLimits): FakeRunner {
  const runner = new FakeRunner(limits);
  runner.adapters.set(-1, 1);
  return runner;
}

/** Guesses that are right and wrong in turn, known from the answers. */
class Guesser implements Drafter {
  readonly readsImages = false;
  #turn = 0;

  constructor(private readonly right: (guess: Guess) => readonly number[]) {}

  draft(guesses: readonly Guess[]): Promise<void> {
    for (const guess of guesses) {
      const right = this.right(guess).slice(0, guess.most);
      const count = this.#turn++ % 4;
      guess.sequence.drafts = right.map((id, index) => (index < count ? id : (id + 1) % VOCAB));
    }
    return Promise.resolve();
  }

  forget(): void {
    // It has nothing of a sequence.
  }

  reset(): void {
    // Nor does a failure change it.
  }
}

// Fewer pages and slots than sequences could need, and prompts longer than a batch.
const SMALL = { ...LIMITS, tokens: 10, sequences: 3, rows: 3 };
const DRAFTERS: Readonly<Record<string, (runner: FakeRunner) => Drafter>> = {
  "the text": () => new NgramDrafter(),
  // The fake model repeats itself for a token or two: these are over before steps that were submitted ahead are read.
  "the text while they pay": (runner) => {
    Object.assign(runner, { stepsInFlight: 1 });
    return new AdaptiveDrafter({ ahead_ms: 1, steps: [1, 9].map((rows) => ({ rows, ms: 1 })) });
  },
  "a small model": () => new DraftModel(new FakeRunner(SMALL)),
  "a recurrent small model": () => new DraftModel(new FakeRunner({ ...SMALL, states: 6 })),
  "its own heads": (runner) => new DraftHeads(runner),
  "its assistant": (runner) => new DraftAssistant(Object.assign(runner, { hasAssistant: true })),
  "its heads that err": (runner) => new DraftHeads(Object.assign(runner, { errs: true })),
  "its assistant that errs": (runner) => new DraftAssistant(Object.assign(runner, { hasAssistant: true, errs: true })),
  "a model that is wrong": () => new DraftModel(otherModel(SMALL)),
};

/** No model with states has an assistant. */
const statesOf = (name: string): readonly number[] => (name.includes("assistant") ? [0] : [0, 9]);

test.each(Object.keys(DRAFTERS).flatMap((name) => statesOf(name).map((states) => [name, states] as const)))(
  "61 mixed requests with drafts of %s, with %i slots for states, are answered as each alone",
  async (name, states) => {
    const alone: (readonly number[])[] = [];
    for (const request of mixedRequests(61)) alone.push((await answer(engineOn(new FakeRunner(LIMITS)), request)).ids);
    // Pages of heads run out too: then a sequence gets no drafts.
    const runner = new FakeRunner({ ...LIMITS, states, draftPages: name.startsWith("its") ? 20 : 0 });
    const engine = speculating(runner, DRAFTERS[name]?.(runner) ?? new NgramDrafter());
    const noise = mixedRequests(20).map(async (request, index) => {
      const tokens = engine.generateTokens(request);
      for (let read = 0; read <= index % 4; read++) await tokens.next();
      await tokens.return(undefined as never);
    });
    const together = await Promise.all(mixedRequests(61).map((request) => answer(engine, request)));
    await Promise.all(noise);
    expect(together.map(({ ids }) => ids)).toEqual(alone);
    const { draftedTokens, acceptedTokens } = engine.counts;
    expect(draftedTokens).toBeGreaterThan(0);
    if (name.includes("err")) expect(acceptedTokens / draftedTokens).toBeLessThan(0.9);
    else if (/small model|its/.test(name)) expect(acceptedTokens / draftedTokens).toBeGreaterThan(0.9);
    if (name.endsWith("wrong")) expect(acceptedTokens / draftedTokens).toBeLessThan(0.5);
  },
);

test("right drafts save steps, and the usage counts them", async () => {
  const runner = new FakeRunner(LIMITS);
  const small = new FakeRunner(LIMITS);
  const { ids, completion } = await answer(speculating(runner, new DraftModel(small)), { maxTokens: 11 });
  expect(ids).toEqual(answerOf(PROMPT, 11, 64).tokens);
  // The first token comes from the prompt, then five a step.
  expect(runner.batches.map(({ sample_rows }) => sample_rows.length)).toEqual([1, 5, 5]);
  expect(completion).toMatchObject({ draftedTokens: 8, acceptedTokens: 8, passes: 3 });
  // The small model reads the prompt and the first token, then the tokens that it did not compute itself.
  expect(small.batches.map(({ token_ids }) => token_ids.filter((id) => id >= 0).length)).toEqual([
    11, 0, 0, 0, 2, 0, 0, 0,
  ]);
});

test.each([
  ["heads", (runner: FakeRunner) => new DraftHeads(runner)],
  ["a small model", () => new DraftModel(Object.assign(new FakeRunner(LIMITS), { chunk: 20 }))],
])("%s read a prompt by the chunk of their runner", async (_, drafterOf) => {
  const runner = new FakeRunner({ ...LIMITS, draftPages: 24 });
  runner.chunk = 20;
  const promptIds = Array.from({ length: 45 }, (_, index) => 1 + (index % 9));
  const { ids } = await answer(speculating(runner, drafterOf(runner)), { promptIds, maxTokens: 8 });
  expect(ids).toEqual(answerOf(promptIds, 8, 64).tokens);
  expect(Math.max(...runner.batches.map(({ token_ids }) => token_ids.length))).toBe(20);
});

test("heads read what the model has computed, and each known token once", async () => {
  const runner = new FakeRunner({ ...LIMITS, draftPages: 24 });
  const { ids, completion } = await answer(speculating(runner, new DraftHeads(runner)), { maxTokens: 11 });
  expect(ids).toEqual(answerOf(PROMPT, 11, 64).tokens);
  expect(completion).toMatchObject({ draftedTokens: 8, acceptedTokens: 8 });
  const ofHeads = runner.batches.filter(({ kept_rows }) => kept_rows?.length);
  // All tokens after the first one of the prompt, then a guess after each; later those that the model has computed.
  expect(ofHeads.map(({ token_ids }) => token_ids.filter((id) => id >= 0).length)).toEqual([10, 0, 0, 0, 5, 0, 0, 0]);
  expect(ofHeads.map(({ kept_rows = [] }) => kept_rows.filter((row) => row < 0).length)).toEqual([
    0, 1, 1, 1, 0, 1, 1, 1,
  ]);
});

test("an assistant reads the last token only, and guesses at one position", async () => {
  const runner = Object.assign(new FakeRunner({ ...LIMITS, draftPages: 24 }), { hasAssistant: true });
  const { ids, completion } = await answer(speculating(runner, new DraftAssistant(runner)), { maxTokens: 11 });
  expect(ids).toEqual(answerOf(PROMPT, 11, 64).tokens);
  expect(completion).toMatchObject({ draftedTokens: 8, acceptedTokens: 8 });
  const guesses = runner.batches.filter(({ kept_rows }) => kept_rows?.length);
  const [first, second] = [PROMPT.length - 1, PROMPT.length + 4];
  expect(guesses.map(({ positions }) => positions)).toEqual(
    [first, second].flatMap((at) => Array.from({ length: 4 }, () => [at])),
  );
});

test("what was not checked is guessed only once", async () => {
  const sequence = new Sequence(0, PROMPT, PLAIN);
  const small = new FakeRunner(LIMITS);
  const drafter = new DraftModel(small);
  const guess = { sequence, sampling: resolveSampling({}, VOCAB), most: 3 };
  await drafter.draft([guess]);
  const first = [...sequence.drafts];
  expect(first).toEqual(answerOf(PROMPT, 3, 64).tokens);
  await drafter.draft([guess]);
  expect(sequence.drafts).toEqual(first);
  expect(small.batches).toHaveLength(3);
});

test("a sequence whose guess could not be computed gets none before its next token", async () => {
  const failed = (result: StepResult, number: number): StepResult =>
    number === 0 ? { ...result, tokenIds: result.tokenIds.map(() => -1) } : result;
  const small = new FakeRunner(LIMITS);
  const drafter = changed(failed, small);
  const [first, second] = [PROMPT, OTHERS[0] ?? []].map((prompt, id) => ({
    sequence: new Sequence(id, prompt, PLAIN),
    sampling: resolveSampling({}, VOCAB),
    most: 1,
  })) as [Guess, Guess];
  await drafter.draft([first]);
  await drafter.draft([first, second]);
  expect([first.sequence.drafts, second.sequence.drafts]).toEqual([[], answerOf(OTHERS[0] ?? [], 1, 64).tokens]);
  expect(small.batches.at(-1)?.seq_starts).toEqual([0, OTHERS[0]?.length]);
});

test("a sequence that ends while its drafts are made keeps its pages until they are", async () => {
  const small = Object.assign(new FakeRunner({ ...LIMITS, sequences: 2 }), { stepsInFlight: 1 });
  const drafter = new DraftModel(small);
  const guessOf = (id: number): Guess => ({
    sequence: new Sequence(id, PROMPT, PLAIN),
    sampling: resolveSampling({}, VOCAB),
    most: 3,
  });
  const [first, second, third] = [guessOf(0), guessOf(1), guessOf(2)];
  const drafting = drafter.draft([first, second]);
  drafter.forget(first.sequence);
  await drafting;
  expect(second.sequence.drafts).toEqual(answerOf(PROMPT, 3, 64).tokens);
  await drafter.draft([third]);
  expect(third.sequence.drafts).toEqual(answerOf(PROMPT, 3, 64).tokens);
});

/** Guesses of the fake model's greedy answers. */
function rightAndWrong(): Drafter {
  const answers = new Map<string, readonly number[]>();
  return new Guesser(({ sequence: { tokens, prompt } }) => {
    const key = prompt.join();
    if (!answers.has(key)) answers.set(key, answerOf(prompt, 30, 64).tokens);
    return answers.get(key)?.slice(tokens.length - prompt.length) ?? [];
  });
}

test.each(
  ["right and wrong guesses", "its own heads", "its heads that err", "its assistant"].flatMap((name) =>
    statesOf(name).map((states) => [name, states] as const),
  ),
)("conversations and forks with drafts of %s continue alike, with %i slots for states", async (name, states) => {
  const runner = new FakeRunner({ ...LIMITS, states, draftPages: name.startsWith("its") ? 24 : 0 });
  const engine = speculating(runner, DRAFTERS[name]?.(runner) ?? rightAndWrong());
  const retained = newConversation();
  const first = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 9 }, retained));
  expect(first.ids).toEqual(answerOf(PROMPT, 9, 64).tokens);
  const clone = forkOf(retained);
  const promptIds = [...PROMPT, ...first.ids, 3];
  const turns = [
    [promptIds, retained],
    [[...promptIds, 4], clone],
    [[...promptIds, 5], forkOf(clone)],
  ] as const;
  const next = await Promise.all(
    turns.map(([ids, own]) => collect(engine.generateTokens({ promptIds: ids, maxTokens: 9 }, own))),
  );
  next.forEach(({ ids, completion }, index) => {
    expect(ids).toEqual(answerOf(turns[index]?.[0] ?? [], 9, 64).tokens);
    expect(completion.cachedTokens).toBeGreaterThan(8);
  });
  const { draftedTokens, acceptedTokens } = engine.counts;
  expect(acceptedTokens).toBeGreaterThan(0);
  if (/own|assistant/.test(name)) expect(acceptedTokens).toBe(draftedTokens);
  else expect(acceptedTokens).toBeLessThan(draftedTokens);
});

test("requests with penalties, biases, masks or old tokens that go do not speculate", async () => {
  const engine = speculating(new FakeRunner(LIMITS), new DraftModel(new FakeRunner(LIMITS)));
  for (const request of [
    { sampling: { repetitionPenalty: 1.5 } },
    { sampling: { logitBias: new Map([[3, 1]]) } },
    { whenFull: { keep: 4 } },
    { logitProcessor: () => undefined },
  ])
    expect((await answer(engine, request)).ids).toEqual((await answer(engineOn(new FakeRunner(LIMITS)), request)).ids);
  expect(engine.counts.draftedTokens).toBe(0);
});

/** A small model that guesses right, whose results ``change`` by their number. */
function changed(
  change: (result: StepResult, number: number) => StepResult,
  runner = new FakeRunner(LIMITS),
): DraftModel {
  const { limits, stepsInFlight } = runner;
  let number = 0;
  const submit: DraftRunner["submit"] = async (...step) => change(await runner.submit(...step), number++);
  return new DraftModel({ limits, stepsInFlight, submit });
}

test("a small model whose device fails now and then starts anew, and one that fails in a row is left out", async () => {
  const [from, right] = [12, answerOf(PROMPT, 20, 64).tokens];
  const lost = (result: StepResult, number: number): StepResult => {
    if (number === 6 || number >= from) throw new DeviceError("lost");
    return result;
  };
  const engine = speculating(new FakeRunner(LIMITS), changed(lost));
  expect((await answer(engine, { maxTokens: 20 })).ids).toEqual(right);
  const { draftedTokens } = engine.counts;
  // A round of drafts has four steps: the second one fails, those after it are right.
  expect(draftedTokens).toBeGreaterThan(4);
  expect((await answer(engine, { maxTokens: 20 })).ids).toEqual(right);
  expect(engine.counts.draftedTokens).toBe(draftedTokens);
  let calls = 0;
  const draft = (): Promise<void> => (calls++, Promise.reject(new DeviceError("lost")));
  const broken: Drafter = { readsImages: false, draft, forget: () => undefined, reset: () => undefined };
  expect((await answer(speculating(new FakeRunner(LIMITS), broken), { maxTokens: 20 })).ids).toEqual(right);
  expect(calls).toBe(4);
});

test("a guess that could not be computed ends a draft, whatever follows it", async () => {
  const failed = (result: StepResult, number: number): StepResult =>
    number % 4 === 2 ? { ...result, tokenIds: result.tokenIds.map(() => -1) } : result;
  const engine = speculating(new FakeRunner(LIMITS), changed(failed));
  const { ids } = await answer(engine, { maxTokens: 20 });
  expect(ids).toEqual(answerOf(PROMPT, 20, 64).tokens);
  const { draftedTokens, acceptedTokens } = engine.counts;
  expect(acceptedTokens).toBeGreaterThan(4);
  expect(acceptedTokens).toBe(draftedTokens);
});

test("the text guesses the tokens that followed its last tokens before", async () => {
  const drafter = new NgramDrafter();
  const sequence = new Sequence(0, [1, 2, 3, 4, 5, 9, 2, 3], PLAIN);
  const guess = { sequence, sampling: resolveSampling({}, VOCAB), most: 3 };
  await drafter.draft([guess]);
  expect(sequence.drafts).toEqual([4, 5, 9]);
  // Longer matches take precedence: 9 followed the last 2, 3, but 7 followed 9, 2, 3.
  sequence.tokens.push(7, 2, 3, 9, 9, 2, 3);
  await drafter.draft([guess]);
  expect(sequence.drafts).toEqual([7, 2, 3]);
  sequence.tokens.push(8);
  await drafter.draft([guess]);
  expect(sequence.drafts).toEqual([]);
});
