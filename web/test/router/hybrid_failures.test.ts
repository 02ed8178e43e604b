// A side breaks or is late, and the other one takes over; or the client aborts the answer.

import { expect, test } from "vitest";

import { DeviceError } from "../../src/errors.js";
import { FakeFar, turns } from "./fakes.js";
import { LOST, MESSAGES, QUESTION, WATCHED, read, routes, setUp, shown } from "./hybrid_set_up.js";

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

test.each([
  [500, "circuit_open"],
  [429, "far_failed"],
  [503, "far_failed"],
  [529, "far_failed"],
])("status %i of the server and its circuit", async (status, reason) => {
  const { nf } = await setUp({
    policy: { mode: "prefer-far", retries: 0, breaker: { failures: 1, open_ms: 60_000 } },
    far: [{ status }, { status }],
  });
  await nf.chat.completions.create({ messages: MESSAGES });
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({ side: "near", reason });
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

test("far does not take over once today's budget is spent", async () => {
  const { nf, far, ledger } = await setUp({
    policy: { budget: { far_requests_per_day: 1 } },
    scripts: [{ text: "near, ", then: new DeviceError("lost") }],
  });
  const reading = async (): Promise<void> => {
    // The budget is spent, by another page, while near writes.
    for await (const _ of await nf.chat.completions.create({ messages: MESSAGES, stream: true }))
      ledger.add({ requests: 1 });
  };
  await expect(reading()).rejects.toMatchObject({ details: { code: "budget" } });
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
