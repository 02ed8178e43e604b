// Embeddings and rerank of a Hybrid: which side answers, what leaves the device, and never vectors of two models.

import { describe, expect, test, vi } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { CreateEmbeddingResponse } from "../../src/api/types.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import type { HybridOptions } from "../../src/router/hybrid.js";
import { Hybrid } from "../../src/router/hybrid.js";
import { FAR, FakeClock, FakeFar, MemoryLedger, near } from "./fakes.js";

const ONLINE = { online: true, battery: null, charging: null, thermal: null };
const CARD = { id: "minilm", context: 256, tokenizer_sha256: "abc", vocab_size: 512, tools: false, verify: false };

function answerOf(values: readonly number[], model = "minilm"): CreateEmbeddingResponse {
  const data = values.map((value, index) => ({ object: "embedding" as const, index, embedding: [value] }));
  return { object: "list", data, model, usage: { prompt_tokens: 1000, total_tokens: 1000 } };
}

function encoder(model = "minilm", tokenizerSha256: string | null = "abc") {
  const { engine } = near({ text: "" });
  const create = vi.fn(({ input }: { input: readonly string[] }) =>
    Promise.resolve(
      answerOf(
        input.map(() => 1),
        model,
      ),
    ),
  );
  const rerank = vi.fn(
    () =>
    Promise.resolve({
      id: "rerank-1", object: "list", model, results: [{ index: 0, relevance_score: 1 }],
      usage: { prompt_tokens: 1, total_tokens: 1 },
    }), // oxfmt-ignore
  );
  const info = { ...engine.info, model, tokenizerSha256 };
  return { create, rerank, engine: { ...engine, info, embeddings: { create }, rerank } as unknown as EngineApi };
}

/** ``answers``: those of the far side's routes, in turn: an object, or a status. */
async function setUp(
  policy: object,
  answers: readonly (object | number | "refused" | "silent")[] = [answerOf([2])],
  rest: Partial<HybridOptions> = {},
  cards: readonly object[] = [CARD],
) {
  const far = new FakeFar();
  far.about = { api_version: 1, models: cards };
  const bodies: Record<string, unknown>[] = [];
  const fetch: typeof far.fetch = async (url, init) => {
    if (!/\/v1\/(?:embeddings|rerank)$/.test(url)) return far.fetch(url, init);
    bodies.push(JSON.parse(init.body as string) as Record<string, unknown>);
    await Promise.resolve();
    const answer = answers[Math.min(bodies.length, answers.length) - 1] ?? "refused";
    if (answer === "refused" || !far.reachable) throw new TypeError("fetch failed");
    if (answer === "silent") return new Promise<Response>(() => undefined);
    if (typeof answer === "number")
      return new Response(JSON.stringify({ error: { message: "no" } }), { status: answer });
    return new Response(JSON.stringify(answer));
  };
  const clock = new FakeClock();
  const ledger = new MemoryLedger();
  const side = encoder();
  const nf = await Hybrid.create({
    near: side.engine,
    far: { baseURL: FAR },
    policy: { version: 1, retries: 0, ...policy },
    fetch,
    device: { read: () => Promise.resolve(ONLINE) },
    ledger,
    clock,
    ...rest,
  });
  return { nf, far, bodies, clock, ledger, near: side };
}

const TEXTS = ["a boat", "a bird"];

describe("who embeds", () => {
  test.each([
    ["prefer-near", {}, 1, "near", "prefer"],
    ["prefer-far", {}, 2, "far", "prefer"],
    ["auto", {}, 1, "near", "cost"],
    ["far-only", {}, 2, "far", "mode"],
    ["prefer-near", { pin: "far" }, 2, "far", "pinned"],
    ["prefer-far", { labels: ["private"] }, 1, "near", "private"],
    ["prefer-far", { input: ["a boat", "key 4711"] }, 1, "near", "private"],
    // No pattern can be searched in token ids.
    ["prefer-far", { input: [[1, 2]] }, 1, "near", "private"],
  ])("in mode %s with %j: vectors of [%d] by %s", async (mode, params, value, side, reason) => {
    const isFar = mode === "far-only";
    const rules = isFar ? {} : { private: { patterns: ["[0-9]{4}"] } };
    const given = await setUp({ mode, ...rules }, [answerOf([2, 2])], isFar ? { near: null } : {});
    const { data, route, model } = await given.nf.embeddings.create({ input: TEXTS, ...params } as never);
    expect(data[0]?.embedding).toEqual([value]);
    expect([model, route.side, route.reason]).toEqual(["minilm", side, reason]);
    expect(given.bodies).toEqual(side === "far" ? [{ input: TEXTS, model: "minilm" }] : []);
    if (side === "near") expect(given.far.sent).not.toMatch(/boat|4711|\[1,2\]/);
  });

  test("far's tokens and requests count in the budget, and a spent budget leaves near", async () => {
    const price = { prompt_usd_per_million: 2000 };
    const { nf, ledger } = await setUp({ mode: "prefer-far", price, budget: { far_usd_per_day: 1.5 } });
    expect((await nf.embeddings.create({ input: "a" })).route.side).toBe("far");
    expect(ledger.today()).toEqual({ usd: 2, requests: 1 });
    expect((await nf.embeddings.create({ input: ["a"] })).route).toMatchObject({ side: "near", reason: "budget" });
  });

  test("unknown labels and parameters are errors", async () => {
    const { nf } = await setUp({ mode: "prefer-near" });
    await expect(nf.embeddings.create({ input: "a", labels: ["x"] })).rejects.toThrow("no label 'x'");
    await expect(nf.embeddings.create({ input: "a", pin: "left" } as never)).rejects.toThrow("pin");
    const reason = new Error("enough");
    await expect(nf.embeddings.create({ input: "a" }, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });
});

describe("a side fails", () => {
  test.each<[string, object | number | "refused"]>([
    ["is overloaded", 503],
    ["cannot be reached", "refused"],
    ["does not know the model", 404],
    ["sends too few vectors", answerOf([2])],
    ["sends no vectors", { object: "list", data: [{ index: 0 }, {}] }],
  ])("near answers if far %s", async (_, answer) => {
    const { nf, near: side } = await setUp({ mode: "prefer-far" }, [answer]);
    const { route } = await nf.embeddings.create({ input: TEXTS });
    expect(route).toMatchObject({ side: "near", reason: "far_failed" });
    expect(side.create).toHaveBeenCalledTimes(1);
  });

  test("far answers if near's device is lost, but not for a private or a wrong request", async () => {
    const { nf, near: side, bodies } = await setUp({ mode: "prefer-near" }, [answerOf([2, 2])]);
    side.create.mockRejectedValue(new DeviceError("the device was lost"));
    expect((await nf.embeddings.create({ input: TEXTS })).route).toMatchObject({ side: "far", reason: "near_failed" });
    await expect(nf.embeddings.create({ input: TEXTS, labels: ["private"] })).rejects.toThrow("was lost");
    side.create.mockRejectedValue(new RequestError("the text is too long"));
    await expect(nf.embeddings.create({ input: TEXTS })).rejects.toThrow("too long");
    expect(bodies).toHaveLength(1);
  });

  test("a retry comes before the other side, and a silent server's time grows with the texts", async () => {
    const timeouts = { far_first_token_ms: 1000, between_tokens_ms: 500 };
    const policy = { mode: "prefer-far", retries: 1, timeouts };
    const { nf, clock, bodies } = await setUp(policy, [503, answerOf([2, 2]), "silent"]);
    const first = nf.embeddings.create({ input: TEXTS });
    await clock.pass(250);
    expect((await first).route).toMatchObject({ side: "far", reason: "prefer" });
    const second = nf.embeddings.create({ input: [...TEXTS, "c"] });
    const settled = vi.fn();
    void second.then(settled);
    await clock.pass(1999);
    expect(settled).not.toHaveBeenCalled();
    await clock.pass(1);
    expect((await second).route).toMatchObject({ side: "near", reason: "far_timeout" });
    expect(bodies).toHaveLength(3);
  });

  test("far gets no requests for a while after it has failed several times", async () => {
    const { nf, bodies } = await setUp({ mode: "prefer-far", breaker: { failures: 2, open_ms: 1000 } }, ["refused"]);
    for (let index = 0; index < 4; index++) await nf.embeddings.create({ input: ["a"] });
    expect(bodies).toHaveLength(2);
  });

  test("failures of chats and of embeddings open one circuit", async () => {
    const { nf, far } = await setUp({ mode: "prefer-far", breaker: { failures: 2, open_ms: 1000 } });
    far.reachable = false;
    const reasons: string[] = [];
    await nf.chat.completions.create({ messages: [{ role: "user", content: "a" }] });
    for (let index = 0; index < 2; index++) reasons.push((await nf.embeddings.create({ input: ["a"] })).route.reason);
    expect(reasons).toEqual(["far_failed", "circuit_open"]);
  });
});

describe("two models", () => {
  test.each([
    ["another name", { ...CARD, id: "bge" }, /'minilm' and the far side 'bge'/],
    ["another tokenizer", { ...CARD, tokenizer_sha256: "def" }, /'minilm' with different tokenizers/],
  ])("with %s: no vectors of either side", async (_, card, message) => {
    const given = await setUp({ mode: "prefer-near" }, [answerOf([2])], {}, [card]);
    const { nf, bodies, ledger, near: side } = given;
    for (const pin of ["near", "far", null] as const) {
      const error: unknown = await nf.embeddings.create({ input: "a", pin }).catch((reason: unknown) => reason);
      expect(error).toMatchObject({ code: "request_error", details: { code: "different_models" } });
      expect(String(error)).toMatch(message);
    }
    expect([bodies, side.create.mock.calls, ledger.today().requests]).toEqual([[], [], 0]);
    // Each side may rank by its own model.
    expect((await nf.rerank({ query: "a", documents: ["b"] })).route.side).toBe("near");
  });

  test("near waits for the name of far's model, unless the options name it", async () => {
    const offline = { device: { read: () => Promise.resolve({ ...ONLINE, online: false }) } };
    const broken = { ...offline, fetch: () => Promise.reject(new TypeError("fetch failed")) };
    const { nf } = await setUp({ mode: "prefer-near" }, [], broken);
    await expect(nf.embeddings.create({ input: "a" })).rejects.toMatchObject({ details: { code: "unknown_model" } });
    const named = await setUp({ mode: "prefer-near" }, [], { ...broken, far: { baseURL: FAR, model: "minilm" } });
    expect((await named.nf.embeddings.create({ input: ["a"] })).route.side).toBe("near");
    const other = await setUp({ mode: "prefer-near" }, [], { ...broken, far: { baseURL: FAR, model: "bge" } });
    await expect(other.nf.embeddings.create({ input: ["a"] })).rejects.toThrow("cannot be compared");
  });

  test("far answers while near loads, and near alone needs no name", async () => {
    const { nf } = await setUp({ mode: "prefer-near" }, [answerOf([2])], {
      near: new Promise<EngineApi>(() => undefined),
    });
    expect((await nf.embeddings.create({ input: "a" })).route).toMatchObject({
      side: "far",
      reason: "near_unavailable",
    });
    const alone = await setUp({ mode: "near-only" }, [], { far: null });
    expect((await alone.nf.embeddings.create({ input: ["a"] })).route.side).toBe("near");
  });
});

test("rerank is answered by one side, and private documents stay", async () => {
  const found = { id: "1", object: "list", model: "minilm", results: [{ index: 1, relevance_score: 0.5 }] };
  const { nf, bodies, near: side } = await setUp({ mode: "prefer-far", private: { patterns: ["secret"] } }, [found]);
  const far = await nf.rerank({ query: "boat", documents: TEXTS, top_n: 1 });
  expect([far.results, far.route.side]).toEqual([found.results, "far"]);
  expect(bodies).toEqual([{ query: "boat", documents: TEXTS, top_n: 1, model: "minilm" }]);
  const own = await nf.rerank({ query: "boat", documents: [{ text: "a", note: "a secret" }] });
  expect([own.route.side, own.route.reason, side.rerank.mock.calls.length]).toEqual(["near", "private", 1]);
  expect(bodies).toHaveLength(1);
});

test.each([
  ["cre", ["boat", { text: "t 47" }], "near"],
  ["my secre", ["boat", "t47"], "near"],
  // Documents meet no other document.
  ["boat", ["my secre", "t 47"], "far"],
  ["t 47", ["my secre"], "far"],
])("a query %j meets each of the documents %j", async (query, documents, side) => {
  const found = { id: "1", object: "list", model: "minilm", results: [{ index: 0, relevance_score: 0.5 }] };
  const rules = { patterns: ["(my se)?cret ?47"] };
  const { nf } = await setUp({ mode: "prefer-far", private: rules }, [found]);
  expect((await nf.rerank({ query, documents })).route.side).toBe(side);
});
