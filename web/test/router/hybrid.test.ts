// Hybrid as a page uses it: which side answers.

import { expect, test, vi } from "vitest";

import type { ChatCompletionMessageParam, Route } from "../../src/api/types.js";
import { DeviceError } from "../../src/errors.js";
import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import { near, turns } from "./fakes.js";
import { MESSAGES, QUESTION, SURE, read, routes, setUp, shown } from "./hybrid_set_up.js";

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
  expect((await other.nf.chat.completions.create({ messages: MESSAGES })).choices[0]?.message.content).toBe("far away");
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

test("a probe decides until near's answers show how fast it is", async () => {
  const slow = { prefill_tokens_per_second: 1, decode_tokens_per_second: 5 };
  const policy = { mode: "auto", device: { max_first_token_seconds: 1.5 } };
  const unknown = await setUp({ policy });
  expect((await unknown.nf.chat.completions.create({ messages: MESSAGES })).route?.side).toBe("near");
  const probe = { refusals: [], fit: null };
  const { nf } = await setUp({ policy, probe: { ...probe, speed: slow } });
  const { route } = await nf.chat.completions.create({ messages: MESSAGES });
  expect(route).toMatchObject({ side: "far", reason: "seconds" });
  const fast = await setUp({ policy, probe: { ...probe, speed: { ...slow, prefill_tokens_per_second: 1e6 } } });
  expect((await fast.nf.chat.completions.create({ messages: MESSAGES })).route?.side).toBe("near");
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
  ["a failure", { text: "", then: new DeviceError("lost") }, "near_failed"],
  ["its time", { text: "", then: "hang" }, "near_timeout"],
] as const)("near is asked once if %s ends it before the decision", async (_, script, reason) => {
  // Without signals near would be chosen.
  const { nf, source, clock } = await setUp({
    policy: {
      mode: "auto",
      quality: { predictor: BY_FIRST_TOKENS, threshold: 0.1 },
      timeouts: { near_first_token_ms: 900 },
      breaker: { failures: 1 },
    },
    scripts: [script],
  });
  const reading = read(nf);
  await clock.pass(1000);
  expect(routes(await reading)[0]).toEqual({ side: "far", reason, at: null });
  expect([source.requests.length, source.running]).toEqual([1, 0]);
  expect(routes(await read(nf))[0]?.reason).toBe("circuit_open");
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

test("a picture goes to this device if its model sees, and is refused if no side does", async () => {
  const picture = { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } };
  const messages = [{ role: "user" as const, content: [picture] }];
  const blind = await setUp();
  await expect(blind.nf.chat.completions.create({ messages })).rejects.toThrow(
    "it reads only text; remove images, and files that are not text",
  );
  const { engine } = near(SURE);
  const seeing = { ...engine, info: { ...engine.info, images: true } };
  const { nf, far } = await setUp({ near: seeing });
  // The fake engine was asked, which cannot see in truth.
  await expect(nf.chat.completions.create({ messages })).rejects.toThrow(
    "is a picture, and this model reads texts only",
  );
  expect(far.requests.filter(({ method }) => method === "POST")).toEqual([]);
});
