// A prompt that a server has computed: the answer is the one without it, near computes only what it checks, and whatever
// is wrong with what came, near computes the prompt itself.

import { expect, test } from "vitest";

import type { TokenRequest } from "../../src/engine/request.js";
import { newConversation } from "../../src/engine/sequence.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { Unavailable } from "../../src/errors.js";
import { wireBytes } from "../../src/prefill/blocks.js";
import type { PrefillReport } from "../../src/prefill/far_prefill.js";
import { FarPrefill } from "../../src/prefill/far_prefill.js";
import type { PrefillDecision } from "../../src/prefill/plan.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import { collect } from "../engine/engine_set_up.js";
import type { SentBlock } from "./kv_runner.js";
import { BASE, KvRunner, PAGE, VOCAB, blocksOf, joined, layoutOf, manifestOf, written } from "./kv_runner.js";

const PROMPT = Array.from({ length: 130 }, (_, index) => (7 * index + 3) % VOCAB);
const FULL = 128;
const REQUEST: TokenRequest = { promptIds: PROMPT, maxTokens: 12 };
const FAR: PrefillDecision = { side: "far", reason: "sooner", near_seconds: 9, far_seconds: 1 };
const NEAR: PrefillDecision = { side: "near", reason: "later", near_seconds: 1, far_seconds: 9 };
const KINDS: readonly (readonly [string, RunnerLimits])[] = [
  ["pages", BASE],
  ["states", { ...BASE, states: 6 }],
  ["a window", { ...BASE, groups: [{ pages: 200, window: 20 }] }],
  [
    "two groups and states",
    {
      ...BASE,
      states: 6,
      groups: [
        { pages: 200, window: Infinity },
        { pages: 60, window: 20 },
      ],
    },
  ],
];

interface Sent {
  readonly prompt: readonly number[];
  readonly start: number;
}

/** An engine that asks a far side, whose blocks ``change`` changes. */
function filling(
  limits: RunnerLimits,
  { change = (blocks: SentBlock[]) => blocks, decide = (): PrefillDecision => FAR } = {},
) {
  const runner = new KvRunner(limits);
  const tokens = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [] });
  const asked: Sent[] = [];
  const facts: unknown[] = [];
  const prefill = new FarPrefill(
    { tokens, manifest: manifestOf(limits), info: () => ({ activation: "float32" }) },
    "5ha",
    async (route, body) => {
      expect(route).toBe("/v1/nearfar/prefill");
      const { prompt, start } = body as unknown as Sent;
      asked.push({ prompt, start });
      return new Response(await written(change(await blocksOf(limits, prompt, start))));
    },
  );
  const fill = (request: TokenRequest): Promise<PrefillReport> =>
    prefill.fill(request, {
      decide: (counted) => {
        facts.push(counted);
        return decide();
      },
      measured: () => undefined,
    });
  const answer = async (request: TokenRequest) => {
    const before = tokens.counts.computedTokens;
    const report = await fill(request);
    const { ids, completion } = await collect(tokens.generateTokens(request));
    return { report, ids, cached: completion.cachedTokens, computed: tokens.counts.computedTokens - before };
  };
  return { tokens, asked, facts, fill, answer };
}

/** The answer of an engine that computes everything. */
async function plain(limits: RunnerLimits, request = REQUEST): Promise<readonly number[]> {
  const tokens = new TokenEngine(new KvRunner(limits), { vocabSize: VOCAB, endTokenIds: [] });
  return (await collect(tokens.generateTokens(request))).ids;
}

test.each(KINDS)("far computes a prompt, and near answers as if it had: %s", async (_, limits) => {
  const { answer, asked, facts } = filling(limits);
  const { report, ids, cached, computed } = await answer(REQUEST);
  expect(ids).toEqual(await plain(limits));
  expect(cached).toBe(FULL);
  expect(report).toMatchObject({ side: "far", reason: "sooner", tokens: FULL - PAGE });
  expect(report.differences.every((difference) => difference === 0)).toBe(true);
  expect(asked).toEqual([{ prompt: PROMPT.slice(0, FULL), start: 0 }]);
  const layout = layoutOf(limits);
  const bytes = wireBytes(layout, { start: 0, tokens: FULL }, "q4");
  expect(facts[0]).toMatchObject({ near_tokens: PROMPT.length, far_tokens: FULL, bytes });
  expect(report.bytes + layout.statesBytes("q4")).toBe(bytes);
  // The pages that it compares, each with a token more, and what follows the prompt.
  const compared = report.differences.length;
  expect(computed).toBe(compared * (PAGE + 1) + PROMPT.length - FULL + 11);
});

test("only what the cache lacks is asked for, and compared from the cache's last page on", async () => {
  const { tokens, answer, asked } = filling(BASE);
  await collect(tokens.generateTokens({ promptIds: PROMPT.slice(0, 42), maxTokens: 1 }));
  const { ids, report } = await answer(REQUEST);
  expect(asked).toEqual([{ prompt: PROMPT.slice(0, FULL), start: 36 }]);
  expect(report.tokens).toBe(FULL - 40);
  expect(ids).toEqual(await plain(BASE));
  // Now all of it is cached.
  expect(await answer(REQUEST)).toMatchObject({ report: { side: "near", reason: "few_tokens" }, cached: FULL });
  expect(asked).toHaveLength(1);
});

test("what the decision leaves near is not asked for", async () => {
  const { answer, asked } = filling(BASE, { decide: () => NEAR });
  const { report, computed } = await answer(REQUEST);
  expect(report).toMatchObject({ side: "near", reason: "later", bytes: 0 });
  expect([asked.length, computed]).toEqual([0, PROMPT.length + 11]);
});

test.each<[string, Partial<TokenRequest>]>([
  ["an adapter", { adapter: "own" }],
  ["log-probabilities of the prompt", { promptLogprobs: 3 }],
  ["an answer that was begun", { begun: { tokens: [] } }],
  ["a prompt longer than the context", { promptIds: Array.from({ length: 400 }, () => 1) }],
])("near computes a request with %s", async (_, other) => {
  const { fill, asked } = filling(BASE);
  expect(await fill({ ...REQUEST, ...other })).toMatchObject({ side: "near", reason: "unfit" });
  expect(asked).toEqual([]);
});

const withFields = (index: number, fields: Record<string, unknown>) => (blocks: SentBlock[]) =>
  blocks.map((each, position) => (position === index ? { ...each, fields: { ...each.fields, ...fields } } : each));

const doubled = (blocks: SentBlock[]): SentBlock[] =>
  blocks.map((each, index) => (index === 2 ? { ...each, content: joined([each.content, each.content]) } : each));

test.each<[string, (blocks: SentBlock[]) => SentBlock[], string, string | undefined]>([
  ["a block is damaged", withFields(2, { sha256: "0".repeat(64) }), "failed", undefined],
  ["it stops before the end", (blocks) => blocks.slice(0, 4), "failed", undefined],
  ["a part is left out", (blocks) => blocks.filter((_, index) => index !== 2), "failed", undefined],
  ["a block is larger than its pages", doubled, "failed", undefined],
  ["pages come twice", (blocks) => [...blocks.slice(0, 3), ...blocks.slice(2)], "failed", undefined],
  ["it has another version", withFields(0, { version: 1 }), "failed", "prefill_version"],
  ["the model has other layers", withFields(0, { groups: [] }), "failed", "model_differs"],
  ["the model has other weights", withFields(0, { quantization: "q4f16" }), "failed", "model_differs"],
  ["the first page differs", (blocks) => scrambled(blocks, 1), "differs", "prefill_differs"],
  ["the last page differs", (blocks) => scrambled(blocks, blocks.length - 2), "differs", "prefill_differs"],
])("near computes the prompt if %s", async (_, change, reason, code) => {
  const { answer, tokens } = filling(BASE, { change });
  const { report, ids, cached } = await answer(REQUEST);
  expect(report).toMatchObject({ side: "near", reason, tokens: 0 });
  expect((report.error as Unavailable).details.code).toBe(code);
  expect(ids).toEqual(await plain(BASE));
  // Nothing that came is used: at most the first page, which is near's own.
  expect(cached).toBeLessThanOrEqual(PAGE);
  expect(tokens.foreign).toBeUndefined();
});

/** The values of all rows of a block in another order. */
function scrambled(blocks: SentBlock[], index: number): SentBlock[] {
  return blocks.map((each, position) => {
    if (position !== index) return each;
    const words = new Uint32Array(each.content.slice().buffer);
    return { ...each, content: new Uint8Array(words.map((word) => word ^ 0x03530531).buffer) };
  });
}

test("far is left as soon as near is expected to be sooner", async () => {
  let calls = 0;
  const { answer } = filling(BASE, { decide: () => (++calls > 2 ? NEAR : FAR) });
  const { report, ids, cached } = await answer(REQUEST);
  expect(report).toMatchObject({ side: "near", reason: "later", tokens: 0 });
  expect(report.bytes).toBeGreaterThan(0);
  expect(ids).toEqual(await plain(BASE));
  expect(cached).toBe(PAGE);
});

test("an answer to the same prompt waits until its pages are checked", async () => {
  const { answer, asked } = filling(BASE);
  const answers = await Promise.all([answer(REQUEST), answer({ ...REQUEST, maxTokens: 3 })]);
  expect(answers.map(({ report }) => report.reason)).toEqual(["sooner", "few_tokens"]);
  expect(asked).toHaveLength(1);
});

test("a cache without room for the prompt computes it", async () => {
  const { tokens, answer } = filling(BASE);
  // As if running answers needed the pages.
  tokens.writeRetained = () => newConversation();
  const { report, ids } = await answer(REQUEST);
  expect(report).toMatchObject({ side: "near", reason: "no_room", tokens: 0 });
  expect(ids).toEqual(await plain(BASE));
});

test("an aborted request ends the transfer with the signal's reason", async () => {
  const controller = new AbortController();
  const { fill } = filling(BASE, {
    decide: () => {
      controller.abort(new Unavailable("stop"));
      return FAR;
    },
  });
  await expect(fill({ ...REQUEST, signal: controller.signal })).rejects.toThrow("stop");
});
