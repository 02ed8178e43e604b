// Near with prompts that far computes: which requests may have one, what it costs, and when far is not asked again.

import { expect, test } from "vitest";

import type { ChatCompletionChunk } from "../../src/api/types.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { RequestError, Unavailable } from "../../src/errors.js";
import type { DescribedRequest } from "../../src/router/describer.js";
import type { Routing } from "../../src/router/routing.js";
import type { FarSide } from "../../src/router/sides/far.js";
import type { NearSide } from "../../src/router/sides/near.js";
import { PrefilledNear } from "../../src/router/sides/prefilled_near.js";
import type { SideRequest } from "../../src/router/sides/sides.js";
import { parsePolicy } from "../../src/shared/decision/policy.js";
import { collect } from "../engine/engine_set_up.js";
import { BASE, KvRunner, VOCAB, blocksOf, manifestOf, written } from "../prefill/kv_runner.js";
import { FakeClock, MemoryLedger } from "./fakes.js";

const PROMPT = Array.from({ length: 130 }, (_, index) => (7 * index + 3) % VOCAB);
const FULL = 128;
const REQUEST = { params: { messages: [] }, from: null, logprobs: null, signal: new AbortController().signal };

interface Setup {
  readonly policy?: object | undefined;
  readonly dialect?: string;
  readonly sha256?: string;
  readonly open?: (prompt: readonly number[], start: number) => Promise<Response>;
}

function setUp({ policy = {}, dialect = "nearfar", sha256 = "5ha", open }: Setup = {}) {
  const tokens = new TokenEngine(new KvRunner(BASE), { vocabSize: VOCAB, endTokenIds: [] });
  const [clock, ledger] = [new FakeClock(), new MemoryLedger()];
  const engine = {
    info: { tokenizerSha256: "5ha" },
    cacheHost: { tokens, manifest: manifestOf(BASE), info: () => ({ activation: "float32" }) },
    over: (source: TokenEngine) => source,
    generateTokens: (...args: Parameters<TokenEngine["generateTokens"]>) => tokens.generateTokens(...args),
  };
  const plain = { calls: 0 };
  const near = {
    info: null,
    drafting: engine,
    async *answer(_: SideRequest, __: unknown, source: Pick<TokenEngine, "generateTokens"> = engine) {
      if (source === engine) plain.calls++;
      const { completion } = await collect(source.generateTokens({ promptIds: PROMPT, maxTokens: 2 }));
      yield { choices: [], usage: { prompt_tokens: FULL, cached: completion.cachedTokens } };
    },
  };
  let asked = 0;
  const far = {
    dialect,
    queueSeconds: 0,
    roundTripSeconds: 0.05,
    reach: () => Promise.resolve({ tokenizerSha256: sha256 }),
    open: async (_: string, { prompt, start }: { prompt: readonly number[]; start: number }) => {
      asked++;
      if (open !== undefined) return open(prompt, start);
      await clock.pass(700);
      return new Response(await written(await blocksOf(BASE, prompt, start)));
    },
  };
  const wiring = { policy: parsePolicy({ version: 1, mode: "prefer-near", prefill: {}, ...policy }), ledger, clock };
  const speed = { prefill_tokens_per_second: 15, decode_tokens_per_second: null, round_trip_seconds: null };
  const records = { near: { speed }, far: { speed: { ...speed, prefill_tokens_per_second: null } } };
  const prefilled = new PrefilledNear(
    far as unknown as FarSide,
    near as unknown as NearSide,
    { wiring, records } as unknown as Routing,
  );
  const answer = async (params: object = {}, standby = true, request: object = {}) => {
    const answered = { request: { params }, choice: { standby } } as unknown as DescribedRequest;
    const side = prefilled.over(near as unknown as NearSide, answered);
    const chunks: ChatCompletionChunk[] = [];
    for await (const chunk of side.answer({ ...REQUEST, ...request })) chunks.push(chunk);
    return chunks.at(-1)?.usage as unknown as { readonly cached: number; readonly queue_ms?: number };
  };
  return { prefilled, answer, ledger, plain, tokens, asked: () => asked };
}

const LONG = { prefill: { min_tokens: 64 } };

test("a prompt counts as a request without an answer, and its time is not near's", async () => {
  const price = { prompt_usd_per_million: 1000, completion_usd_per_million: 5000 };
  const { answer, asked, ledger, prefilled } = setUp({ policy: { ...LONG, price, costs: { usd_per_second: 1 } } });
  expect(await answer()).toMatchObject({ cached: FULL, queue_ms: 700 });
  expect(asked()).toBe(1);
  expect(ledger.today()).toEqual({ requests: 1, usd: FULL / 1000 });
  expect(prefilled.counts).toMatchObject({ asked: 1, used: 1, tokens: FULL - 4, differed: 0 });
  expect(prefilled.counts.last).toMatchObject({ side: "far", reason: "explores" });
  // The prompt is cached.
  expect(await answer()).toEqual({ prompt_tokens: FULL, cached: FULL });
  expect(asked()).toBe(1);
});

test.each<[string, Setup["policy"], object, boolean, object]>([
  ["far may not have", LONG, {}, false, {}],
  ["with a receipt", LONG, { receipt: true }, true, {}],
  ["that goes on", LONG, {}, true, { from: { text: "so far", tokenIds: null, tokens: 2, chunks: 1 } }],
  ["of few tokens", { prefill: { min_tokens: 512 } }, {}, true, {}],
  ["over the budget", { ...LONG, budget: { far_requests_per_day: 0 } }, {}, true, {}],
  ["that costs more than the time", { ...LONG, price: { prompt_usd_per_million: 1 } }, {}, true, {}],
])("near computes the prompt of an answer %s", async (_, policy, params, standby, request) => {
  const { answer, asked } = setUp({ policy });
  expect((await answer(params, standby, request)).cached).toBe(0);
  expect(asked()).toBe(0);
});

test.each<[string, Setup, number]>([
  ["has another tokenizer", { sha256: "other" }, 0],
  ["has no such route", { open: () => Promise.reject(new RequestError("no", { code: "unknown_url" })) }, 1],
  ["is busy", { open: () => Promise.reject(new Unavailable("busy", { retryable: true })) }, 2],
])("near computes prompts if the server %s", async (_, setup, times) => {
  const { answer, asked, tokens } = setUp({ ...setup, policy: LONG });
  for (let turn = 0; turn < 2; turn++) {
    await answer();
    tokens.forgetAll();
  }
  expect(asked()).toBe(times);
});

test.each([
  [10, 0.1, "far", "explores"],
  [0.1, 100, "near", "later"],
] as const)("a page takes far %s s and 64 tokens %s s: %s", async (page, part, side, reason) => {
  // One page shows how long far takes to begin.
  const open = async (prompt: readonly number[], start: number) => {
    const blocks = (await blocksOf(BASE, prompt, start, 64)).map(({ fields, content }) => ({
      content,
      fields: { ...fields, seconds: Number(fields.tokens) < 64 ? page : part },
    }));
    return new Response(await written(blocks));
  };
  const { answer, prefilled } = setUp({ policy: { ...LONG, prefill: { min_tokens: 16 } }, open });
  await answer();
  expect(prefilled.counts.last).toMatchObject({ side, reason });
});

test.each<[Setup, string]>([
  [{ dialect: "openai" }, "a server of dialect openai computes no prompts"],
  [
    { policy: { private: { masks: { strict: true, patterns: [{ kind: "ID", pattern: "[0-9]{7}" }] } } } },
    "are not the fields that private.masks.strict lets leave",
  ],
])("a policy that cannot be followed is an error", (setup, message) => {
  expect(() => setUp(setup)).toThrow(message);
});
