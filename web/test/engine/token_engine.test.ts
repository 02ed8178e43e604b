import fc from "fast-check";
import { expect, test } from "vitest";

import { forkOf, newConversation } from "../../src/engine/sequence.js";
import { drawAt } from "../../src/engine/resolved_sampling.js";
import { Gate } from "../../src/engine/gate.js";
import { mulberry32 } from "./mulberry32.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { pagesOfSequence } from "../../src/runtime/page_groups.js";
import { GROUPS, LIMITS, OTHERS, PROMPT, answer, collect, engineOn, onePool } from "./engine_set_up.js";
import { STOP, VOCAB, answerOf, logprobsOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";

test("an answer equals that of the model, and ends at maxTokens", async () => {
  const { ids, completion } = await answer(engineOn(new FakeRunner(LIMITS)));
  expect(ids).toEqual(answerOf(PROMPT, 6, 64).tokens);
  expect(completion).toEqual({
    finishReason: "length",
    promptTokens: 10,
    cachedTokens: 0,
    completionTokens: 6,
    passes: 6,
  });
});

test("a stop token ends the answer and is not emitted", async () => {
  const { ids } = await answer(engineOn(new FakeRunner(LIMITS)));
  const stop = ids[2] ?? -1;
  const stopped = await answer(engineOn(new FakeRunner(LIMITS)), { stopTokenIds: [stop] });
  expect(stopped.ids).toEqual(ids.slice(0, ids.indexOf(stop)));
  expect(stopped.completion.finishReason).toBe("stop");
});

test("steps run before earlier ones are read: their tokens are passed on the device", async () => {
  const runner = new FakeRunner(LIMITS);
  await answer(engineOn(runner));
  const fed = runner.batches.filter(({ token_ids }) => token_ids.length === 1 && (token_ids[0] ?? 0) < 0);
  expect(fed.length).toBeGreaterThan(2);
});

test("a second turn computes only its new tokens", async () => {
  const engine = engineOn(new FakeRunner(LIMITS));
  const first = await answer(engine);
  const before = engine.counts.computedTokens;
  const promptIds = [...PROMPT, ...first.ids, 11, 12];
  const second = await answer(engine, { promptIds, maxTokens: 1 });
  expect(second.ids).toEqual(answerOf(promptIds, 1, 64).tokens);
  // 12 of 15 computed positions fill pages.
  expect(second.completion.cachedTokens).toBe(12);
  expect(engine.counts.computedTokens - before).toBe(promptIds.length - 12);
});

test("a retained sequence also retains the unfilled page, and its clone copies it before writing", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = engineOn(runner);
  const retained = newConversation();
  const first = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 4 }, retained));
  const clone = forkOf(retained);
  const promptIds = [...PROMPT, ...first.ids, 3];
  const [one, other] = await Promise.all([
    collect(engine.generateTokens({ promptIds, maxTokens: 5 }, retained)),
    collect(engine.generateTokens({ promptIds: [...promptIds, 4], maxTokens: 5 }, clone)),
  ]);
  expect(one.ids).toEqual(answerOf(promptIds, 5, 64).tokens);
  expect(other.ids).toEqual(answerOf([...promptIds, 4], 5, 64).tokens);
  expect(one.completion.cachedTokens).toBe(13);
  expect(runner.calls.some((call) => call.startsWith("copy"))).toBe(true);
});

test.each(GROUPS)("a retained sequence can be saved, and restored into another engine", async (...groups) => {
  const limits = { ...LIMITS, groups };
  const engine = engineOn(new FakeRunner(limits));
  const retained = newConversation();
  const { ids } = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 4 }, retained));
  const saved = await engine.readRetained(retained);
  // 13 tokens fill 4 pages; the next one sees 5 of them.
  expect(saved.deadPages).toEqual(groups.map(({ window }) => (window === 6 ? 2 : 0)));
  expect(saved.keysAndValues.length).toBe(saved.deadPages.reduce((sum, count) => sum + (4 - count) * 2 * 4 * 4, 0));
  const other = engineOn(new FakeRunner(limits));
  expect(() => other.writeRetained({ ...saved, keysAndValues: saved.keysAndValues.slice(8) })).toThrow(
    "wrong number of bytes",
  );
  const restored = other.writeRetained(saved);
  const promptIds = [...PROMPT, ...ids, 5];
  const { ids: next, completion } = await collect(other.generateTokens({ promptIds, maxTokens: 4 }, restored));
  expect(next).toEqual(answerOf(promptIds, 4, 64).tokens);
  expect(completion.cachedTokens).toBe(13);
});

test.each(GROUPS)("a conversation is saved with its state, and restored if there is room for it", async (...groups) => {
  const limits = { ...LIMITS, groups, states: 6 };
  const engine = engineOn(new FakeRunner(limits));
  const retained = newConversation();
  const { ids } = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 4 }, retained));
  const saved = await engine.readRetained(retained);
  expect(saved.tokenIds).toHaveLength(13);
  expect(saved.deadPages).toHaveLength(groups.length);
  const promptIds = [...PROMPT, ...ids, 5];
  for (const [states, cached] of [
    [6, 13],
    [4, 0],
  ] as const) {
    const other = engineOn(new FakeRunner({ ...limits, states }));
    const { ids: next, completion } = await collect(
      other.generateTokens({ promptIds, maxTokens: 4 }, other.writeRetained(saved)),
    );
    expect(next).toEqual(answerOf(promptIds, 4, 64).tokens);
    expect(completion.cachedTokens).toBe(cached);
    expect(other.counts.stateHits).toBe(cached > 0 ? 1 : 0);
  }
});

test("a fork of a conversation continues after the same state", async () => {
  const engine = engineOn(new FakeRunner({ ...LIMITS, states: 8 }));
  const retained = newConversation();
  const { ids } = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 4 }, retained));
  const forks = [retained, forkOf(retained)];
  const answers = await Promise.all(
    forks.map((own, index) =>
      collect(engine.generateTokens({ promptIds: [...PROMPT, ...ids, index], maxTokens: 4 }, own)),
    ),
  );
  answers.forEach((each, index) => {
    expect(each.ids).toEqual(answerOf([...PROMPT, ...ids, index], 4, 64).tokens);
    expect(each.completion.cachedTokens).toBe(13);
  });
});

test("a model with recurrent layers cannot drop old tokens", async () => {
  const engine = engineOn(new FakeRunner({ ...LIMITS, states: 8 }));
  await expect(answer(engine, { whenFull: { keep: 4 } })).rejects.toThrow("states of this model's recurrent layers");
});

test.each(GROUPS)(
  "another question continues a conversation before its end, from pages that it gave back",
  async (...groups) => {
    const engine = engineOn(new FakeRunner({ ...LIMITS, groups }));
    const retained = newConversation();
    const { ids } = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 12 }, retained));
    // Another question after 11 tokens: the window of position 11 begins at 6, in a page that only the cache holds.
    const promptIds = [...PROMPT, ids[0] ?? 0, 3];
    const { ids: next, completion } = await collect(engine.generateTokens({ promptIds, maxTokens: 4 }, retained));
    expect(next).toEqual(answerOf(promptIds, 4, 64).tokens);
    expect(completion.cachedTokens).toBe(11);
  },
);

test("simultaneous requests share steps, and their answers equal those of single requests", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = engineOn(runner);
  const prompts = [PROMPT, ...OTHERS];
  const answers = await Promise.all(prompts.map((promptIds) => answer(engine, { promptIds })));
  answers.forEach(({ ids }, index) => {
    expect(ids).toEqual(answerOf(prompts[index] ?? [], 6, 64).tokens);
  });
  expect(Math.max(...runner.batches.map(({ seq_starts }) => seq_starts.length - 1))).toBe(3);
});

test("an aborted answer ends with the signal's reason, and the engine still answers", async () => {
  const engine = engineOn(new FakeRunner(LIMITS));
  const controller = new AbortController();
  const tokens = engine.generateTokens({ promptIds: PROMPT, signal: controller.signal });
  await tokens.next();
  controller.abort(new Error("enough"));
  await expect(collect(tokens)).rejects.toThrow("enough");
  expect((await answer(engine)).ids).toHaveLength(6);
});

test("a page is lent only if a sequence that fills the context does not need it", async () => {
  const limits = { ...LIMITS, context: 16, groups: onePool(4) };
  expect(engineOn(new FakeRunner(limits)).lendPages()).toBeNull();
  const engine = engineOn(new FakeRunner({ ...limits, groups: onePool(5) }));
  expect(engine.lendPages()).toHaveLength(1);
  expect((await answer(engine, { maxTokens: 30 })).ids).toHaveLength(7);
  engine.returnPages();
});

test("a slot for states is lent only if a sequence that continues a snapshot does not need it", async () => {
  const limits = { ...LIMITS, sequences: 1, context: 16, groups: onePool(5) };
  expect(engineOn(new FakeRunner({ ...limits, states: 2 })).lendPages()).toBeNull();
  const engine = engineOn(new FakeRunner({ ...limits, states: 3 }));
  expect(engine.lendPages()).toHaveLength(2);
  const retained = newConversation();
  const { ids } = await collect(engine.generateTokens({ promptIds: PROMPT, maxTokens: 1 }, retained));
  const promptIds = [...PROMPT, ...ids, 3];
  const next = await collect(engine.generateTokens({ promptIds, maxTokens: 4 }, retained));
  expect(next.ids).toEqual(answerOf(promptIds, 4, 16).tokens);
  // The state of the last page border is read: there is no slot for that of the end.
  expect(next.completion.cachedTokens).toBe(8);
  engine.returnPages();
});

test("leaving the loop ends the answer", async () => {
  const runner = new FakeRunner({ ...LIMITS, context: 64 });
  const engine = engineOn(runner);
  const tokens = engine.generateTokens({ promptIds: PROMPT });
  await tokens.next();
  await tokens.return({ finishReason: "stop", promptTokens: 0, cachedTokens: 0, completionTokens: 0 });
  const before = runner.batches.length;
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(runner.batches.length).toBeLessThanOrEqual(before + 1);
});

test("a lost device is replaced during an answer, which continues with the same tokens", async () => {
  const engine = engineOn(new FakeRunner(LIMITS, 4), () => Promise.resolve(new FakeRunner(LIMITS)));
  const sampling = { temperature: 1, seed: 7 };
  const { ids } = await answer(engine, { maxTokens: 12, sampling });
  expect(ids).toEqual((await answer(engineOn(new FakeRunner(LIMITS)), { maxTokens: 12, sampling })).ids);
  expect(engine.counts.recoveries).toBe(1);
});

test("without a new device, every answer fails with the error of the old one", async () => {
  const engine = engineOn(new FakeRunner(LIMITS, 2));
  const both = [answer(engine), answer(engine)];
  await expect(both[0]).rejects.toMatchObject({ code: "device_error" });
  await expect(both[1]).rejects.toMatchObject({ code: "device_error" });
  await expect(answer(engine)).rejects.toMatchObject({ code: "device_error" });
});

test("answers fail if the device is lost repeatedly", async () => {
  const engine = engineOn(new FakeRunner(LIMITS, 0), () => Promise.resolve(new FakeRunner(LIMITS, 0)));
  await expect(answer(engine)).rejects.toMatchObject({ code: "device_error" });
});

test("a full context ends an answer, or the oldest tokens are dropped", async () => {
  const limits = { ...LIMITS, context: 16, groups: onePool(4) };
  const ended = await answer(engineOn(new FakeRunner(limits)), { maxTokens: 30 });
  expect(ended.completion.finishReason).toBe("length");
  expect(ended.ids).toHaveLength(7);
  const shifted = await answer(engineOn(new FakeRunner(limits)), { maxTokens: 30, whenFull: { keep: 4 } });
  expect(shifted.ids.slice(0, 7)).toEqual(ended.ids);
  expect(shifted.ids.length).toBeGreaterThan(7);
  const long = Array.from({ length: 40 }, (_, index) => 1 + (index % 15));
  await expect(answer(engineOn(new FakeRunner(limits)), { promptIds: long })).rejects.toMatchObject({
    code: "request_error",
  });
  expect((await answer(engineOn(new FakeRunner(limits)), { promptIds: long, whenFull: { keep: 4 } })).ids).toHaveLength(
    6,
  );
});

test("dropping the oldest tokens has the same answers in all page groups", async () => {
  const answers = GROUPS.map(async (groups) => {
    const engine = engineOn(new FakeRunner({ ...LIMITS, context: 24, groups }));
    const { ids } = await answer(engine, { maxTokens: 60, whenFull: { keep: 4 } });
    return [ids, (await answer(engine, { promptIds: [...PROMPT, 7], maxTokens: 60, whenFull: { keep: 4 } })).ids];
  });
  const [plain, ...others] = await Promise.all(answers);
  expect(plain?.[0]?.length).toBeGreaterThan(14);
  for (const other of others) expect(other).toEqual(plain);
});

test("penalties and biases are written to the slot, and log-probabilities are returned", async () => {
  const runner = new FakeRunner(LIMITS);
  const sampling = { repetitionPenalty: 1.2, logitBias: new Map([[3, 2.5]]) };
  const { tokens } = await answer(engineOn(runner), { sampling, logprobs: 2 });
  expect(PROMPT.map((id) => (runner.counts.get(0)?.[id] ?? 0) >> 16)).toEqual(PROMPT.map(() => 1));
  expect(runner.biases.get(0)?.[3]).toBe(2.5);
  expect(runner.batches.at(-1)?.sample_slots).toEqual([0, 3]);
  const exact = logprobsOf(PROMPT);
  expect(tokens[0]?.logprob).toBeCloseTo(exact[tokens[0]?.tokenId ?? -1] ?? NaN, 5);
  const best = [...exact].sort((a, b) => b - a).slice(0, 2);
  expect(tokens[0]?.alternatives.map(({ tokenId }) => tokenId)).toEqual(best.map((value) => exact.indexOf(value)));
});

test.each([
  [{ promptIds: [] }, "promptIds"],
  [{ promptIds: [VOCAB] }, "promptIds"],
  [{ maxTokens: 0 }, "maxTokens"],
  [{ logprobs: 21 }, "logprobs"],
  [{ promptLogprobs: -1 }, "promptLogprobs"],
  [{ promptAlternatives: 21 }, "promptAlternatives"],
  [{ sampling: { temperature: -1 } }, "temperature"],
  [{ sampling: { topP: 0 } }, "topP"],
  [{ sampling: { seed: -1 } }, "seed"],
  [{ sampling: { logitBias: new Map([[VOCAB, 1]]) } }, "logitBias"],
  [{ whenFull: { keep: 33 } }, "whenFull.keep"],
])("%j is refused", async (request, param) => {
  await expect(answer(engineOn(new FakeRunner(LIMITS)), request)).rejects.toMatchObject({
    code: "request_error",
    details: { param },
  });
});

test("while the gate is closed, the device gets nothing; then answers continue with the same tokens", async () => {
  const runner = new FakeRunner(LIMITS);
  const gate = new Gate();
  const engine = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP] }, null, gate);
  const first = engine.generateTokens({ promptIds: PROMPT, maxTokens: 6 });
  await first.next();
  await gate.close();
  const submitted = runner.batches.length;
  const second = answer(engine);
  await new Promise((resolve) => setTimeout(resolve, 10));
  expect([runner.batches.length, engine.isBusy]).toEqual([submitted, true]);
  gate.open();
  expect((await collect(first)).ids).toEqual(answerOf(PROMPT, 6, 64).tokens.slice(1));
  expect((await second).ids).toEqual(answerOf(PROMPT, 6, 64).tokens);
  expect(engine.isBusy).toBe(false);
});

test("the numbers of a seed are the same when drawn one by one and at any index", () => {
  const draw = mulberry32(4_000_000_000);
  for (let index = 0; index < 50; index++) expect(drawAt(4_000_000_000, index)).toBe(draw());
});

const FULL_CACHE = [
  { who: 2, fork: true, say: [1, 1, 1, 1] },
  { who: 2, fork: false, say: [1, 1, 2, 1] },
  { who: 2, fork: true, say: [1, 1, 4] },
  { who: 2, fork: false, say: [1, 1] },
  { who: 2, fork: true, say: [1, 1, 1] },
  { who: 2, fork: true, say: [4] },
];

test("random conversations with retained sequences, forks and few pages get the answers of single requests", async () => {
  const turn = fc.record({
    who: fc.integer({ min: 0, max: 2 }),
    fork: fc.boolean(),
    say: fc.array(fc.integer({ min: 1, max: 15 }), { minLength: 1, maxLength: 5 }),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.array(turn, { minLength: 2, maxLength: 12 }),
      fc.integer({ min: 0, max: 6 }),
      fc.option(fc.integer({ min: 2, max: 14 })),
      fc.boolean(),
      fc.option(fc.integer({ min: 0, max: 5 })),
      async (turns, spare, window, isMixed, snapshots) => {
        const whole = { pages: 10 + spare, window: Infinity };
        const sizes = { tokens: 5, sequences: 2, pageSize: 4, context: 40, vocabSize: VOCAB };
        const pages = window === null ? 0 : pagesOfSequence({ window }, { ...sizes, maxTokens: sizes.tokens }) + spare;
        const groups = window === null ? [whole] : [...(isMixed ? [whole] : []), { pages, window }];
        const limits = { ...sizes, groups, states: snapshots === null ? 0 : sizes.sequences + snapshots };
        const engine = engineOn(new FakeRunner(limits));
        const conversations = [0, 1, 2].map(() => ({ retained: newConversation(), tokens: [] as number[] }));
        for (const { who, fork, say } of turns) {
          const from = conversations[who] ?? { retained: newConversation(), tokens: [] };
          // The conversation continues in its fork and, with other tokens, in itself at the same time.
          const branches = fork ? [from, { retained: forkOf(from.retained), tokens: [...from.tokens] }] : [from];
          await Promise.all(
            branches.map(async (branch, index) => {
              const promptIds = [...branch.tokens, ...say, ...(index === 0 ? [] : [1])].slice(-limits.context);
              const { ids } = await collect(engine.generateTokens({ promptIds, maxTokens: 3 }, branch.retained));
              expect(ids).toEqual(answerOf(promptIds, 3, limits.context).tokens);
              branch.tokens = [...promptIds, ...ids];
            }),
          );
          const fresh = branches[1];
          if (fresh !== undefined) conversations[who] = fresh;
        }
      },
    ),
    // A last page that others follow in the cache, and all other pages in use.
    { numRuns: 200, examples: [[FULL_CACHE, 0, null, false, null]] },
  );
});
