// A warm far cache: far computes the prompt of an answer that near writes, at most once, and shows nothing of it.

import { expect, test } from "vitest";

import type { ChatCompletionTool } from "../../src/api/types.js";
import { DeviceError } from "../../src/errors.js";
import { promptOnly } from "../../src/router/answer/warm_up.js";
import type { FarScript, NearScript } from "./fakes.js";
import { turns } from "./fakes.js";
import { MESSAGES, QUESTION, read, setUp, shown } from "./hybrid_set_up.js";

const LONG: NearScript = { text: "near by and by and by" };
/** Half as unsure as an escalation requires, from the second token on. */
const DOUBTFUL: NearScript = { text: LONG.text, logprobs: [-0.1, -2] };
const ESCALATION = { then: "continue", window_tokens: 2, min_mean_logprob: -3 };
const USAGE = { prompt_tokens: 20, completion_tokens: 1 };
const WARMED: FarScript = { texts: ["x"], finish: "length", usage: USAGE };

test("a doubt lets far compute the prompt, once: paid for, and nothing of it is shown", async () => {
  const price = { prompt_usd_per_million: 1, completion_usd_per_million: 10 };
  const { nf, far, ledger } = await setUp({
    policy: { escalation: ESCALATION, price },
    scripts: [DOUBTFUL],
    far: [WARMED],
  });
  const params = {
    stop: ["!"],
    max_completion_tokens: 99,
    logprobs: true,
    top_logprobs: 2,
    response_format: { type: "text" },
    temperature: 0,
  };
  expect(shown(await read(nf, params))).toBe(LONG.text);
  await turns();
  expect(far.bodies).toEqual([
    {
      model: "big",
      messages: MESSAGES,
      temperature: 0,
      max_tokens: 1,
      stream: true,
      stream_options: { include_usage: true },
    },
  ]);
  expect(ledger.spent).toEqual({ requests: 1, usd: (20 * 1 + 1 * 10) / 1e6 });
});

test.each<["required" | "none", "none" | undefined]>([
  ["required", undefined],
  ["none", "none"],
])("with tool_choice %s a warm-up sends the tools but requires no call", (tool_choice, warmed) => {
  const tools: ChatCompletionTool[] = [{ type: "function", function: { name: "f" } }];
  expect(promptOnly({ messages: MESSAGES, tools, tool_choice })).toMatchObject({
    tools,
    tool_choice: warmed,
    max_tokens: 1,
  });
});

test("the prompt that far computed ahead counts as cached", async () => {
  const { nf, clock } = await setUp({
    policy: { escalation: { ...ESCALATION, warm: "always" } },
    scripts: [DOUBTFUL],
    far: [{ texts: ["far"] }, WARMED],
  });
  const asks = async (content: string, rest: object = {}) =>
    (await nf.chat.completions.create({ messages: [{ role: "user", content }], ...rest })).route?.scores
      .far_first_token_seconds ?? NaN;
  clock.stride = 1000;
  await asks("how fast?", { pin: "far" });
  clock.stride = 0;
  const before = await asks(QUESTION.content);
  expect(before).toBeGreaterThan(0);
  expect(await asks(QUESTION.content)).toBe(0);
});

test.each([
  ["from the start", { warm: "always" }, LONG, 1],
  ["never", { warm: "never" }, DOUBTFUL, 0],
  ["not without a doubt", {}, LONG, 0],
  ["not where nothing is handed over", { warm: "always", then: "never" }, DOUBTFUL, 0],
])("%s: %j", async (_, escalation, script, chats) => {
  const { nf, far } = await setUp({
    policy: { escalation: { ...ESCALATION, ...escalation } },
    scripts: [script],
    far: ["silent"],
  });
  expect(shown(await read(nf))).toBe(LONG.text);
  expect(far.chats.length).toBe(chats);
});

test("a server that does not report its cache computes nothing ahead", async () => {
  const { nf, far } = await setUp({
    policy: { escalation: { ...ESCALATION, then: "restart", warm: "always" } },
    scripts: [DOUBTFUL],
    dialect: "openai",
  });
  await read(nf);
  expect(far.chats).toEqual([]);
});

test.each([
  ["a label", { labels: ["private"] }],
  ["a pattern", { messages: [{ role: "user", content: "secret: 078-05-1120" }] }],
])("nothing is computed ahead for a private request, by %s", async (_, params) => {
  const policy = { private: { patterns: ["[0-9]{3}-[0-9]{2}-[0-9]{4}"] } };
  for (const warm of ["always", "doubt"]) {
    const { nf, far } = await setUp({
      policy: { ...policy, escalation: { ...ESCALATION, warm } },
      scripts: [DOUBTFUL],
    });
    const before = far.requests.length;
    expect(shown(await read(nf, params))).toBe(LONG.text);
    await turns();
    expect(far.requests.length).toBe(before);
    expect(far.sent).not.toMatch(/secret:|27 \+ 58/);
  }
});

test("the remaining budget is reserved for one request", async () => {
  const { nf, far, ledger } = await setUp({
    policy: { escalation: ESCALATION, budget: { far_requests_per_day: 1 } },
    scripts: [DOUBTFUL],
    far: [WARMED],
  });
  await Promise.all([read(nf), read(nf)]);
  expect([far.chats.length, ledger.spent.requests]).toEqual([1, 1]);
});

test("no warm-up is sent while far is on trial after failures", async () => {
  const policy = { escalation: { ...ESCALATION, warm: "always" }, breaker: { failures: 1, open_ms: 1000 }, retries: 0 };
  const { nf, far, clock } = await setUp({ policy, far: [{ status: 500 }, { texts: ["far"] }] });
  await expect(read(nf, { pin: "far" })).rejects.toMatchObject({ code: "unavailable" });
  await clock.pass(1000);
  await read(nf);
  expect(far.chats.length).toBe(1);
});

test("a failed warm-up is not reported, and does not count against far", async () => {
  const policy = { escalation: { ...ESCALATION, warm: "always" }, breaker: { failures: 1 } };
  const { nf, ledger } = await setUp({ policy, scripts: [LONG], far: [{ status: 500 }, { texts: ["far", " away"] }] });
  expect(shown(await read(nf))).toBe(LONG.text);
  expect(shown(await read(nf, { pin: "far" }))).toBe("far away");
  expect(ledger.spent.requests).toBe(2);
});

test("a running warm-up is cancelled when far is asked, and not started again", async () => {
  const scripts: readonly NearScript[] = [
    { text: "abcdefgh", logprobs: [-0.1, -2, -2, -9], then: new DeviceError("lost") },
  ];
  const { nf, far } = await setUp({
    policy: { escalation: ESCALATION },
    scripts,
    far: [{ texts: [], then: "hang" }, { texts: ["…", "far"] }],
  });
  let text = "";
  for await (const { choices, route } of await nf.chat.completions.create({ messages: MESSAGES, stream: true })) {
    text += choices[0]?.delta.content ?? "";
    if (route?.side === "far") expect([route.reason, far.chats[0]?.aborted]).toEqual(["escalated_logprob", true]);
  }
  expect(text).toBe("abcd…far");
  expect(far.bodies.map(({ max_tokens: most, continue_final_message: continues }) => [most, continues])).toEqual([
    [1, undefined],
    [undefined, true],
  ]);
});

test("a running warm-up is cancelled when the answer ends or is closed", async () => {
  const { nf, far } = await setUp({ policy: { escalation: { ...ESCALATION, warm: "always" } }, far: ["silent"] });
  await read(nf);
  expect(far.chats.map(({ aborted }) => aborted)).toEqual([true]);
  for await (const chunk of await nf.chat.completions.create({ messages: MESSAGES, stream: true })) {
    expect(chunk.route?.side).toBe("near");
    break;
  }
  expect(far.chats.map(({ aborted }) => aborted)).toEqual([true, true]);
});
