// Near answers that go wrong: far continues them or starts over.

import { expect, test } from "vitest";

import { FakeFar, lawless, turns } from "./fakes.js";
import { LOST, MESSAGES, WATCHED, read, routes, setUp, shown } from "./hybrid_set_up.js";

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
