// Hybrid as a page uses it: which side answers, failures of a side, and requests that never leave the device.

import { describe, expect, test, vi } from "vitest";

import type { ChatCompletionChunk, ChatCompletionMessageParam, Route } from "../../src/api/types.js";
import { DeviceError } from "../../src/errors.js";
import { PrivateCheck } from "../../src/router/decision/privacy.js";
import type { NearScript } from "./fakes.js";
import { FakeFar, lawless, near, turns } from "./fakes.js";
import { MESSAGES, QUESTION, SURE, read, setUp, shown } from "./hybrid_set_up.js";

/** Sure of its first three tokens, but not of those after them. */
const LOST: NearScript = { text: "abcdefgh", logprobs: [-0.1, -0.1, -0.1, -9] };
const BY_FIRST_TOKENS = {
  version: 2,
  features: ["first_mean_logprob"],
  terms: [],
  mean: [0],
  scale: [1],
  near: { weights: [4], bias: 4 },
  far: { weights: [0], bias: 2 },
  calibration: { near: [1, 0], far: [1, 0] },
};
const WATCHED = { then: "continue", window_tokens: 2, min_mean_logprob: -3 };

const routes = (chunks: readonly ChatCompletionChunk[]) =>
  chunks.flatMap(({ route }) =>
    route === undefined ? [] : [{ side: route.side, reason: route.reason, at: route.switched_at }],
  );

describe("who answers", () => {
  test.each([
    ["prefer-near", {}, "near by", "near", "prefer"],
    ["prefer-far", {}, "far away", "far", "prefer"],
    ["auto", {}, "near by", "near", "cost"],
    ["prefer-near", { pin: "far" }, "far away", "far", "pinned"],
    ["prefer-far", { pin: "near" }, "near by", "near", "pinned"],
    ["prefer-far", { labels: ["private"] }, "near by", "near", "private"],
  ])("in mode %s with %j: %s", async (mode, rest, text, side, reason) => {
    const { nf } = await setUp({ policy: { mode } });
    const complete = await nf.chat.completions.create({ messages: MESSAGES, ...rest } as never);
    expect(complete).toMatchObject({
      object: "chat.completion",
      choices: [{ message: { role: "assistant", content: text }, finish_reason: "stop" }],
      route: { side, reason, switched_at: null },
    });
    const chunks = await read(nf, { ...rest, stream_options: { include_usage: true } });
    expect(shown(chunks)).toBe(text);
    // The first chunk and the last with a choice have the route.
    expect(routes(chunks)).toEqual([
      { side, reason, at: null },
      { side, reason, at: null },
    ]);
    expect([chunks[0]?.route, chunks.at(-2)?.route, chunks[0]?.choices[0]?.delta.role]).toEqual([
      expect.anything(),
      expect.anything(),
      "assistant",
    ]);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(complete.usage.completion_tokens);
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
  });

  test("near-only never sends anything to the server, and far-only needs no engine", async () => {
    const { nf, far } = await setUp({ policy: { mode: "near-only" } });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route?.reason).toBe("mode");
    expect(far.requests).toEqual([]);
    const other = await setUp({ policy: { mode: "far-only" }, near: null });
    expect((await other.nf.chat.completions.create({ messages: MESSAGES })).choices[0]?.message.content).toBe(
      "far away",
    );
  });

  test("without a network near answers, and a request pinned to far gets an error", async () => {
    const { nf } = await setUp({ policy: { mode: "prefer-far" }, hints: { online: false } });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
      side: "near",
      reason: "offline",
    });
    await expect(nf.chat.completions.create({ messages: MESSAGES, pin: "far" })).rejects.toMatchObject({
      code: "unavailable",
      details: { code: "pinned_offline" },
    });
  });

  test("a low battery sends answers far", async () => {
    const { nf } = await setUp({
      policy: { mode: "auto", device: { min_battery: 0.2 } },
      hints: { battery: 0.1, charging: false },
    });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
      side: "far",
      reason: "battery",
    });
  });

  test("the day's budget is counted, and when it is spent near answers", async () => {
    const { nf, ledger } = await setUp({
      policy: {
        mode: "prefer-far",
        budget: { far_requests_per_day: 1 },
        price: { prompt_usd_per_million: 1, completion_usd_per_million: 10 },
      },
    });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route?.side).toBe("far");
    expect(ledger.spent).toEqual({ requests: 1, usd: (20 * 1 + 2 * 10) / 1e6 });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
      side: "near",
      reason: "budget",
    });
  });

  test("a request goes to a side that knows its language, and the language is not sent", async () => {
    const { nf, far } = await setUp({ policy: { mode: "prefer-near", languages: { near: ["en", "fr"] } } });
    expect((await nf.chat.completions.create({ messages: MESSAGES, language: "fr" })).route).toMatchObject({
      side: "near",
      reason: "prefer",
    });
    expect((await nf.chat.completions.create({ messages: MESSAGES, language: "de" })).route).toMatchObject({
      side: "far",
      reason: "language",
    });
    expect(far.sent).not.toMatch(/language/);
  });

  test("measurements of earlier answers are in the scores", async () => {
    const { nf, clock } = await setUp({ policy: { mode: "prefer-far" } });
    const ask = async (content: string): Promise<Route["scores"] | undefined> =>
      (await nf.chat.completions.create({ messages: [{ role: "user", content }], max_tokens: 10 })).route?.scores;
    clock.stride = 1000;
    expect((await ask("what is 27 + 58?"))?.far_total_seconds).toBeNull();
    const {
      far_first_token_seconds: first,
      far_total_seconds: total,
      near_total_seconds: unknown,
    } = (await ask("what is 1 + 1?")) ?? {};
    expect(first).toBeGreaterThan(0);
    // Each of the ten tokens takes at least one second, because the clock is read for it.
    expect((total ?? 0) - (first ?? 0)).toBeGreaterThanOrEqual(10);
    expect(unknown).toBeNull();
  });

  test.each(["near", "far"] as const)(
    "the part of a chat that %s answered lately costs no time again, tool calls included",
    async (side) => {
      const call = {
        tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "add", arguments: '{"a":1}' } }],
      };
      const { nf, clock } = await setUp({
        policy: { mode: `prefer-${side}` },
        far: [{ deltas: [call], finish: "tool_calls" }],
      });
      const ask = (messages: readonly ChatCompletionMessageParam[]) => nf.chat.completions.create({ messages });
      clock.stride = 1000;
      const answer = JSON.stringify((await ask(MESSAGES)).choices[0]?.message);
      clock.stride = 0;
      const firstSeconds = async (chat: string): Promise<number> => {
        const { route } = await ask([
          QUESTION,
          JSON.parse(chat) as ChatCompletionMessageParam,
          { role: "user", content: "and 1 more?" },
        ]);
        expect(route?.side).toBe(side);
        return route?.scores[`${side}_first_token_seconds`] ?? NaN;
      };
      const changed = await firstSeconds(answer.replace("near by", "near to").replace("call_1", "call_2"));
      const goesOn = await firstSeconds(answer);
      const again = await firstSeconds(answer);
      await clock.pass(300_001);
      const late = await firstSeconds(answer);
      expect([again < goesOn, goesOn < changed, changed < late]).toEqual([true, true, true]);
    },
  );

  test("the server's queue is in far's seconds", async () => {
    const { nf, clock, far } = await setUp({ policy: { mode: "prefer-far" } });
    const firstSeconds = async () =>
      (await nf.chat.completions.create({ messages: MESSAGES })).route?.scores.far_first_token_seconds ?? NaN;
    clock.stride = 1000;
    await firstSeconds();
    clock.stride = 0;
    const before = await firstSeconds();
    far.headers = { "X-Nearfar-Queue-Ms": "1500" };
    await firstSeconds();
    expect((await firstSeconds()) - before).toBeCloseTo(1.5, 9);
  });

  test("the wait in far's queue does not count towards its speed", async () => {
    const secondsAfter = async (queue: object) => {
      const { nf, clock } = await setUp({
        policy: { mode: "prefer-far" },
        far: [{ texts: ["far", " away"], usage: { prompt_tokens: 20, completion_tokens: 2, ...queue } }],
      });
      clock.stride = 1000;
      await nf.chat.completions.create({ messages: [{ role: "user", content: "how fast?" }] });
      clock.stride = 0;
      const { far_first_token_seconds: first, far_total_seconds: total } =
        (await nf.chat.completions.create({ messages: MESSAGES })).route?.scores ?? {};
      return { first: first ?? NaN, later: (total ?? NaN) - (first ?? NaN) };
    };
    const [unqueued, queued] = [await secondsAfter({}), await secondsAfter({ queue_ms: 500 })];
    // 20 tokens save half a second; this prompt has 33.
    expect(unqueued.first - queued.first).toBeCloseTo((0.5 * 33) / 20, 9);
    expect(queued.later).toBeCloseTo(unqueued.later, 9);
    expect((await secondsAfter({ queue_ms: 1e9 })).first).toBeNaN();
  });

  test("tools go to the side that supports them, and count as part of the prompt", async () => {
    const tools = [{ type: "function", function: { name: "add" } }];
    const { engine } = near(SURE);
    const { nf, far } = await setUp({ near: { ...engine, info: { ...engine.info, tools: false } } });
    expect((await nf.chat.completions.create({ messages: MESSAGES, tools })).route).toMatchObject({
      side: "far",
      reason: "tools",
    });
    expect(far.bodies[0]?.tools).toEqual(tools);
    const calls: unknown[] = [];
    const counting = {
      ...engine,
      countTokens: (...args: readonly unknown[]) => Promise.resolve(calls.push(args) + 4999),
    };
    const other = await setUp({ near: counting });
    await expect(other.nf.chat.completions.create({ messages: MESSAGES, tools })).rejects.toMatchObject({
      code: "request_error",
      details: { code: "context" },
    });
    expect(calls).toEqual([[MESSAGES, { continueFinalMessage: undefined, tools }]]);
  });

  test("texts are searched once per answer", async () => {
    const searched = vi.spyOn(PrivateCheck.prototype, "isPrivate");
    // The decision, the one with near's signals, and for each whether far may get the request too.
    const { nf } = await setUp({
      policy: { mode: "auto", quality: { predictor: BY_FIRST_TOKENS }, private: { patterns: ["x"] } },
    });
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route?.reason).toBe("quality");
    expect(searched).toHaveBeenCalledTimes(1);
    searched.mockRestore();
  });

  test("several answers in one request are an error", async () => {
    const { nf } = await setUp();
    await expect(nf.chat.completions.create({ messages: MESSAGES, n: 2 })).rejects.toMatchObject({
      code: "request_error",
      param: "n",
    });
  });

  test("near's first tokens decide if the predictor reads them, and are not computed twice", async () => {
    const policy = { mode: "auto", quality: { predictor: BY_FIRST_TOKENS, threshold: 0.1 } };
    const sure = await setUp({ policy });
    expect(shown(await read(sure.nf))).toBe("near by");
    expect([sure.source.requests.length, sure.far.chats.length]).toEqual([1, 0]);
    const lost = await setUp({ policy, scripts: [{ text: "near by", logprobs: [-3] }] });
    const chunks = await read(lost.nf);
    expect([shown(chunks), chunks[0]?.route?.reason]).toEqual(["far away", "quality"]);
    await turns();
    expect([lost.source.requests.length, lost.source.running]).toEqual([1, 0]);
    expect(lost.source.requests[0]?.promptLogprobs).toBeUndefined();
  });

  test.each([
    ["likely to near", { ...SURE, promptLogprobs: [-0.5, -1.5] }, "near by"],
    ["unlikely to near", { ...SURE, promptLogprobs: [-3, -5] }, "far away"],
    ["of which near tells nothing", SURE, "far away"],
  ])("a prompt %s is answered as the predictor says of its mean log-probability", async (_, script, text) => {
    const predictor = {
      version: 2,
      features: ["prompt_mean_logprob"],
      terms: [],
      mean: [-4],
      scale: [1],
      near: { weights: [2], bias: 0 },
      far: { weights: [0], bias: 2 },
      calibration: { near: [1, 0], far: [1, 0] },
    };
    const { nf, source } = await setUp({
      policy: { mode: "auto", quality: { predictor, threshold: 0.1 } },
      scripts: [script],
    });
    expect(shown(await read(nf))).toBe(text);
    expect(source.requests.map(({ promptLogprobs }) => promptLogprobs)).toEqual([32]);
  });
});

describe("when a side breaks", () => {
  test("far fails in the middle of an answer, and near continues its text", async () => {
    const policy = { mode: "prefer-far", price: { prompt_usd_per_million: 1, completion_usd_per_million: 10 } };
    const { nf, source, ledger } = await setUp({
      policy,
      scripts: [{ text: " near" }],
      far: [{ texts: ["from", " far"], then: "break" }],
    });
    const chunks = await read(nf, { max_tokens: 10 });
    expect(shown(chunks)).toBe("from far near");
    expect(routes(chunks)).toEqual([
      { side: "far", reason: "prefer", at: null },
      { side: "near", reason: "far_failed", at: 8 },
      { side: "near", reason: "far_failed", at: 8 },
    ]);
    expect(new TextDecoder().decode(Uint8Array.from(source.requests[0]?.promptIds ?? []))).toBe(
      "[user]what is 27 + 58?[assistant]from far",
    );
    // Two of the ten tokens were far's.
    expect(source.requests[0]?.maxTokens).toBe(8);
    // The cost covers the part that arrived: 33 characters of a prompt are 33 tokens of this tokenizer.
    expect(ledger.spent).toEqual({ requests: 1, usd: (33 * 1 + 2 * 10) / 1e6 });
  });

  test("near's device is lost, and far continues its text", async () => {
    const { nf, far } = await setUp({
      scripts: [{ text: "near, ", then: new DeviceError("lost") }],
      far: [{ texts: ["then far"] }],
    });
    const complete = await nf.chat.completions.create({ messages: MESSAGES });
    expect(complete.choices[0]?.message.content).toBe("near, then far");
    expect(complete.route).toMatchObject({ side: "far", reason: "near_failed", switched_at: 6 });
    expect(far.bodies[0]).toMatchObject({
      continue_final_message: true,
      messages: [QUESTION, { role: "assistant", content: "near, " }],
    });
  });

  test("a server of dialect openai starts over, and near's text is withdrawn", async () => {
    const { nf, far } = await setUp({
      scripts: [{ text: "near, ", then: new DeviceError("lost") }],
      dialect: "openai",
    });
    const chunks = await read(nf);
    expect([shown(chunks), routes(chunks).at(-1)]).toEqual(["far away", { side: "far", reason: "near_failed", at: 0 }]);
    expect(far.sent).not.toContain("near, ");
    const silent = await setUp({
      scripts: [{ text: "near, ", then: new DeviceError("lost") }],
      dialect: "openai",
      far: [{ texts: [] }],
    });
    expect(shown(await read(silent.nf))).toBe("");
  });

  test("a broken connection is retried before near gets the request", async () => {
    const { nf, far, clock } = await setUp({
      policy: { mode: "prefer-far" },
      far: ["refused", { texts: ["far", " away"] }],
    });
    const complete = nf.chat.completions.create({ messages: MESSAGES });
    await clock.pass(200);
    expect((await complete).route).toMatchObject({ side: "far", reason: "prefer" });
    expect(far.chats.length).toBe(2);
  });

  test("an overloaded server gets the request again after the time that it requires", async () => {
    const { nf, far, clock } = await setUp({
      policy: { mode: "prefer-far" },
      far: [{ status: 429, headers: { "Retry-After": "3" } }, { texts: ["far", " away"] }],
    });
    const complete = nf.chat.completions.create({ messages: MESSAGES });
    await clock.pass(2900);
    expect(far.chats.length).toBe(1);
    await clock.pass(200);
    expect((await complete).choices[0]?.message.content).toBe("far away");
  });

  test.each([
    [400, { message: "no such thing", param: "tools" }, { code: "request_error", param: "tools" }],
    [500, {}, { route: { side: "near", reason: "far_failed" } }],
    [401, {}, { route: { side: "near", reason: "far_failed" } }],
    [307, {}, { route: { side: "near", reason: "far_failed" } }],
  ])("status %i of the server", async (status, error, result) => {
    const { nf } = await setUp({ policy: { mode: "prefer-far", retries: 0 }, far: [{ status, error }] });
    const complete = nf.chat.completions.create({ messages: MESSAGES }).catch((reason: unknown) => reason);
    expect(await complete).toMatchObject(result);
  });

  const CONTEXT_FULL = {
    status: 400,
    error: { message: "the maximum context length is 128 tokens", code: "context_length_exceeded" },
  };

  test("the client gets the error of a far side whose context is full", async () => {
    const { nf, far, source } = await setUp({
      policy: { mode: "prefer-far", breaker: { failures: 1, open_ms: 60_000 } },
      far: [CONTEXT_FULL],
    });
    // A full context does not open the circuit, so the second request reaches the server too.
    for (let request = 0; request < 2; request++)
      await expect(nf.chat.completions.create({ messages: MESSAGES })).rejects.toMatchObject({
        code: "request_error",
        message: "the maximum context length is 128 tokens",
        details: { code: "context_length_exceeded" },
      });
    expect([far.chats.length, source.requests.length]).toEqual([2, 0]);
  });

  test.each(["continue", "restart"])(
    "near finishes its answer if the far context is full after an escalation: %s",
    async (then) => {
      const { nf, far } = await setUp({
        policy: { escalation: { ...WATCHED, then, warm: "never" } },
        scripts: [LOST, { text: "EFGH" }],
        far: [CONTEXT_FULL],
      });
      const complete = await nf.chat.completions.create({ messages: MESSAGES });
      expect(complete.route).toMatchObject({ side: "near", reason: "prefer", switched_at: null });
      expect(complete.choices[0]?.message.content).toBe("abcdEFGH");
      expect(far.chats.length).toBe(1);
    },
  );

  test("nothing is sent to a far side whose known context is too short", async () => {
    const far = new FakeFar();
    far.about = { api_version: 1, models: [{ id: "big", context: 64, tools: true }] };
    const { nf } = await setUp({ policy: { mode: "prefer-far" }, far });
    const complete = await nf.chat.completions.create({ messages: MESSAGES, max_tokens: 64 });
    expect(complete.route).toMatchObject({ side: "near", reason: "context" });
    expect(far.chats).toEqual([]);
  });

  test("near answers if the server stays silent", async () => {
    const { nf, far, clock } = await setUp({
      policy: { mode: "prefer-far", timeouts: { far_first_token_ms: 500 } },
      far: ["silent"],
    });
    const complete = nf.chat.completions.create({ messages: MESSAGES });
    await clock.pass(600);
    expect((await complete).route).toMatchObject({ side: "near", reason: "far_timeout", switched_at: null });
    expect(far.chats[0]?.aborted).toBe(true);
  });

  test("near continues if the server stalls in the middle of an answer", async () => {
    const { nf, clock } = await setUp({
      policy: { mode: "prefer-far", timeouts: { between_tokens_ms: 300 } },
      scripts: [{ text: " near" }],
      far: [{ texts: ["far"], then: "hang" }],
    });
    const complete = nf.chat.completions.create({ messages: MESSAGES });
    await clock.pass(400);
    expect((await complete).choices[0]?.message.content).toBe("far near");
    expect((await complete).route).toMatchObject({ side: "near", reason: "far_timeout", switched_at: 3 });
  });

  test("a late near is hedged with far, whose first token wins", async () => {
    const { nf, source, clock } = await setUp({
      policy: { timeouts: { hedge_after_ms: 200 } },
      scripts: [{ text: "", then: "hang" }],
    });
    const complete = nf.chat.completions.create({ messages: MESSAGES });
    await clock.pass(199);
    await clock.pass(1);
    expect((await complete).route).toMatchObject({ side: "far", reason: "near_late", switched_at: null });
    await turns();
    expect(source.running).toBe(0);
  });

  test("a side that keeps failing gets no requests for a while, then one trial request", async () => {
    const far = new FakeFar(["refused", "refused", { texts: ["far", " away"] }]);
    const { nf, clock } = await setUp({
      policy: { mode: "prefer-far", retries: 0, breaker: { failures: 2, open_ms: 1000 } },
      far,
    });
    const reasons = [];
    for (let request = 0; request < 3; request++)
      reasons.push((await nf.chat.completions.create({ messages: MESSAGES })).route?.reason);
    expect([reasons, far.chats.length]).toEqual([["far_failed", "far_failed", "circuit_open"], 2]);
    await clock.pass(1000);
    expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
      side: "far",
      reason: "prefer",
    });
  });

  test("if both fail, the error is that of the last one", async () => {
    const { nf } = await setUp({
      policy: { retries: 0 },
      scripts: [{ text: "", then: new DeviceError("lost") }],
      far: [{ status: 503, error: { message: "full" } }],
    });
    await expect(nf.chat.completions.create({ messages: MESSAGES })).rejects.toMatchObject({
      code: "unavailable",
      message: "http://far.test: full",
      status: 503,
    });
  });

  test("no side takes over after part of a tool call", async () => {
    const call = {
      tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "add", arguments: '{"a":' } }],
    };
    const { nf, source } = await setUp({ policy: { mode: "prefer-far" }, far: [{ deltas: [call], then: "break" }] });
    await expect(
      nf.chat.completions.create({ messages: MESSAGES, tools: [{ type: "function", function: { name: "add" } }] }),
    ).rejects.toMatchObject({ code: "unavailable" });
    expect(source.requests).toEqual([]);
  });

  test("an abort ends both sides and is the error; leaving the loop ends them without one", async () => {
    const { nf, source, far, clock } = await setUp({
      policy: { timeouts: { hedge_after_ms: 10 } },
      scripts: [{ text: "", then: "hang" }],
      far: ["silent"],
    });
    const controller = new AbortController();
    const complete = nf.chat.completions.create({ messages: MESSAGES }, { signal: controller.signal });
    await clock.pass(10);
    expect([source.running, far.chats.length]).toEqual([1, 1]);
    controller.abort(new Error("enough"));
    await expect(complete).rejects.toThrow("enough");
    await turns();
    expect([source.running, far.chats[0]?.aborted]).toEqual([0, true]);

    const other = await setUp({ policy: { mode: "prefer-far" }, far: [{ texts: ["a", "b"], then: "hang" }] });
    const left = (await other.nf.chat.completions.create({ messages: MESSAGES, stream: true }))[Symbol.asyncIterator]();
    await left.next();
    await left.return(undefined);
    await turns();
    expect(other.far.chats[0]?.aborted).toBe(true);
  });
});

describe("escalation", () => {
  test("far continues the text of an answer that goes wrong", async () => {
    const { nf, far, source } = await setUp({
      policy: { escalation: WATCHED },
      scripts: [LOST],
      far: [{ texts: ["…", "far"] }],
    });
    const chunks = await read(nf, { stream_options: { include_usage: true } });
    expect(shown(chunks)).toBe("abcd…far");
    expect(routes(chunks)).toEqual([
      { side: "near", reason: "prefer", at: null },
      { side: "far", reason: "escalated_logprob", at: 4 },
      { side: "far", reason: "escalated_logprob", at: 4 },
    ]);
    expect(far.bodies[0]?.messages?.at(-1)).toEqual({ role: "assistant", content: "abcd" });
    // The log-probabilities that the watch read are not the caller's.
    expect(chunks.every(({ choices }) => (choices[0]?.logprobs ?? null) === null)).toBe(true);
    // Far's prompt contains near's four tokens, which belong to the answer.
    expect(chunks.at(-1)?.usage).toEqual({ prompt_tokens: 16, completion_tokens: 6, total_tokens: 22 });
    await turns();
    expect(source.running).toBe(0);
  });

  test("a server with the same tokenizer continues from near's own tokens", async () => {
    const far = new FakeFar([{ texts: ["…", "far"] }]);
    const about = {
      api_version: 1,
      models: [{ id: "big", context: 4096, tokenizer_sha256: "abc", vocab_size: 512, tools: true, verify: false }],
    };
    const { nf } = await setUp({
      policy: { escalation: WATCHED },
      scripts: [LOST],
      far: Object.assign(far, { about }),
    });
    const complete = await nf.chat.completions.create({ messages: MESSAGES, max_completion_tokens: 10, seed: 7 });
    expect([complete.choices[0]?.message.content, complete.route?.switched_at]).toEqual(["abcd…far", 4]);
    expect(far.requests.slice(1).map(({ url }) => url)).toEqual([
      "http://far.test/tokenize",
      "http://far.test/v1/completions",
    ]);
    // The server's own prompt, then "abcd".
    expect(far.bodies[0]).toEqual({
      model: "big",
      prompt: [1, 2, 3, 97, 98, 99, 100],
      max_tokens: 6,
      seed: 7,
      stream: true,
      stream_options: { include_usage: true },
    });
  });

  test("with restart far starts over, and the complete answer has nothing of near's", async () => {
    const { nf, far } = await setUp({ policy: { escalation: { ...WATCHED, then: "restart" } }, scripts: [LOST] });
    const complete = await nf.chat.completions.create({ messages: MESSAGES });
    expect(complete.choices[0]?.message.content).toBe("far away");
    expect(complete.route).toMatchObject({ side: "far", reason: "escalated_logprob", switched_at: 0 });
    expect(far.bodies[0]?.messages).toEqual(MESSAGES);
  });

  test("if far then fails, near goes on with its own answer", async () => {
    const { nf } = await setUp({
      policy: { escalation: WATCHED, retries: 0 },
      scripts: [LOST, { text: "ij" }],
      far: ["refused"],
    });
    const complete = await nf.chat.completions.create({ messages: MESSAGES });
    expect([complete.choices[0]?.message.content, complete.route?.side]).toEqual(["abcdij", "near"]);
  });

  test("far answers again from the start if near's answer is not the requested JSON", async () => {
    const { nf, far } = await setUp({
      policy: { escalation: WATCHED },
      near: lawless({ text: "no JSON" }),
      far: [{ texts: ['{"a"', ":1}"] }],
    });
    const complete = await nf.chat.completions.create({ messages: MESSAGES, response_format: { type: "json_object" } });
    expect(complete.choices[0]?.message.content).toBe('{"a":1}');
    expect(complete.route).toMatchObject({ side: "far", reason: "escalated_schema", switched_at: 0 });
    expect(far.bodies[0]).not.toHaveProperty("continue_final_message");
  });

  test("the caller gets the requested log-probabilities, with the requested number of alternatives", async () => {
    const { nf } = await setUp({ policy: { escalation: { ...WATCHED, max_mean_entropy: 9 } } });
    const complete = await nf.chat.completions.create({ messages: MESSAGES, logprobs: true });
    expect(
      complete.choices[0]?.logprobs?.content?.map(({ token, top_logprobs: others }) => [token, others.length]),
    ).toEqual(Array.from("near by", (token) => [token, 0]));
  });
});

describe("private texts", () => {
  const policy = {
    mode: "prefer-far",
    labels: ["work"],
    private: { patterns: ["\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b"] },
    escalation: WATCHED,
    timeouts: { hedge_after_ms: undefined },
  };
  const broken: readonly NearScript[] = [{ text: "abcdefgh", logprobs: [-9], then: new DeviceError("lost") }];
  const tool = {
    type: "function",
    function: { name: "find", parameters: { properties: { id: { const: "078-05-1120" } } } },
  };

  test.each([
    ["a label of the request", { labels: ["private"] }],
    [
      "a label of one message",
      { messages: [{ role: "user", content: "secret plan", labels: ["private"] }, ...MESSAGES] },
    ],
    ["a number in a text", { messages: [{ role: "user", content: "secret: 078-05-1120" }] }],
    [
      "a number in a part",
      {
        messages: [
          {
            role: "user",
            content: [
              { type: "text", text: "078-05" },
              { type: "text", text: "-1120" },
            ],
          },
        ],
      },
    ],
    [
      "a number in parts beside others",
      {
        messages: [
          { role: "user", content: ["Summarize", "078-05", "-1120", "now"].map((text) => ({ type: "text", text })) },
        ],
      },
    ],
    [
      "a number in a tool's arguments",
      {
        messages: [
          ...MESSAGES,
          {
            role: "assistant",
            content: null,
            tool_calls: [{ id: "1", type: "function", function: { name: "find", arguments: '{"id":"078-05-1120"}' } }],
          },
          { role: "tool", tool_call_id: "1", content: "secret" },
        ],
      },
    ],
    ["a number in a schema", { tools: [tool], tool_choice: "none" }],
  ])("%s: nothing private leaves, whatever fails", async (_, params) => {
    for (const scripts of [[SURE], broken]) {
      const { nf, far, clock } = await setUp({
        policy: { ...policy, mode: "prefer-near", timeouts: { hedge_after_ms: 1 } },
        scripts,
      });
      const before = far.requests.length;
      const complete = nf.chat.completions
        .create({ messages: MESSAGES, ...params } as never)
        .catch((error: unknown) => error);
      await clock.pass(30_000);
      expect(await complete).toMatchObject(
        scripts === broken ? { code: "device_error" } : { route: { side: "near", reason: "private" } },
      );
      expect(far.requests.length).toBe(before);
      expect(far.sent).not.toMatch(/secret plan|secret:|078-05|27 \+ 58/);
    }
  });

  test("near's own private text does not leave: far does not continue it", async () => {
    const { nf, far } = await setUp({
      policy: { ...policy, mode: "prefer-near" },
      scripts: [{ text: "078-05-1120 ", then: new DeviceError("lost") }],
    });
    await expect(nf.chat.completions.create({ messages: MESSAGES })).rejects.toMatchObject({
      code: "request_error",
      details: { code: "private" },
    });
    expect([far.chats.length, far.sent.includes("078")]).toEqual([0, false]);
  });

  test("private text that near completed from the client's beginning does not leave", async () => {
    const { nf, far } = await setUp({
      policy: { ...policy, mode: "prefer-near" },
      scripts: [{ text: "1120 ", then: new DeviceError("lost") }],
    });
    const messages = [QUESTION, { role: "assistant" as const, content: [{ type: "text" as const, text: "078-05-" }] }];
    await expect(nf.chat.completions.create({ messages, continue_final_message: true })).rejects.toMatchObject({
      details: { code: "private" },
    });
    expect(far.chats).toEqual([]);
  });

  test("labels, pins and cookies are never sent", async () => {
    const { nf, far } = await setUp({ policy });
    await nf.chat.completions.create({
      messages: [{ ...QUESTION, labels: ["work"] }],
      labels: ["work"],
      pin: "far",
      user: "u1",
    });
    expect(far.bodies).toEqual([
      { model: "big", stream: true, stream_options: { include_usage: true }, user: "u1", messages: MESSAGES },
    ]);
    expect(far.sent).not.toMatch(/labels|pin|work/);
    expect(far.chats[0]?.headers).toEqual({ "Content-Type": "application/json", Authorization: "Bearer secret" });
  });

  test("a private request pinned to far is an error, and so is an unknown label", async () => {
    const { nf } = await setUp({ policy });
    await expect(
      nf.chat.completions.create({ messages: MESSAGES, labels: ["private"], pin: "far" }),
    ).rejects.toMatchObject({ code: "request_error", details: { code: "private" } });
    await expect(nf.chat.completions.create({ messages: MESSAGES, labels: ["privat"] })).rejects.toMatchObject({
      code: "request_error",
      details: { code: "unknown_label" },
    });
  });
});
