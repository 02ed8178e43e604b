// Reasoning passes through the router, and appears once, whichever side continues.

import { expect, test } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { ChatCompletionChunk, ChatCompletionDelta } from "../../src/api/types.js";
import { Stream } from "../../src/api/stream.js";
import { DeviceError } from "../../src/errors.js";
import type { Dialect } from "../../src/router/sides/dialect.js";
import { FarSide } from "../../src/router/sides/far.js";
import type { PlainParams } from "../../src/router/sides/sides.js";
import { fakeEngine, modelOf } from "../api/fake_model.js";
import { FAR, FakeClock, FakeFar, ScriptedSource } from "./fakes.js";
import { MESSAGES, QUESTION, setUp } from "./hybrid_set_up.js";

const THOUGHT = { role: "assistant", content: "Yes", reasoning_content: "Hm" } as const;

test.each(["reasoning_content", "reasoning"])("far's reasoning passes as %s", async (key) => {
  const { nf } = await setUp({
    policy: { mode: "far-only" },
    far: [
      {
        deltas: [{ [key]: "Hm." }, { content: "Yes." }],
        usage: { completion_tokens_details: { reasoning_tokens: 3 } },
      },
    ],
  });
  const { choices, usage } = await nf.chat.completions.create({ messages: MESSAGES });
  expect(choices[0]?.message).toMatchObject({ reasoning_content: "Hm.", content: "Yes." });
  expect(usage.completion_tokens_details).toEqual({ reasoning_tokens: 3 });
});

test("near's device is lost in its reasoning, and far starts over", async () => {
  const { nf, far } = await setUp({
    near: reasoner({ reasoning_content: "Hm" }),
    far: [{ deltas: [{ reasoning_content: "So." }, { content: "No." }] }],
  });
  const { choices, route } = await nf.chat.completions.create({ messages: MESSAGES });
  expect(choices[0]?.message).toMatchObject({ reasoning_content: "So.", content: "No." });
  expect(route).toMatchObject({ side: "far", reason: "near_failed", switched_at: 0 });
  expect(far.bodies[0]?.messages).toEqual([QUESTION]);
});

test("near's device is lost after its reasoning, and far continues both", async () => {
  const near = reasoner({ reasoning_content: "Hm." }, { content: "Ye" });
  const { nf, far } = await setUp({ near, far: [{ texts: ["s."] }] });
  const { choices, route } = await nf.chat.completions.create({ messages: MESSAGES, max_tokens: 20 });
  expect(choices[0]?.message).toMatchObject({ reasoning_content: "Hm.", content: "Yes." });
  expect(route).toMatchObject({ side: "far", switched_at: 2 });
  expect(far.bodies[0]).toMatchObject({
    max_tokens: 18,
    messages: [QUESTION, { role: "assistant", content: "Ye", reasoning_content: "Hm." }],
  });
});

test("private reasoning does not leave", async () => {
  const policy = { private: { patterns: ["[0-9]{3}-[0-9]{2}"] } };
  const { nf, far } = await setUp({ policy, near: reasoner({ reasoning_content: "123-45" }, { content: "Yes" }) });
  await expect(nf.chat.completions.create({ messages: MESSAGES })).rejects.toMatchObject({
    details: { code: "private" },
  });
  expect(far.sent).not.toContain("123-45");
});

test.each<[Dialect, Partial<PlainParams>, object]>([
  [
    "nearfar",
    { enable_thinking: false, thinking_token_budget: 9 },
    { enable_thinking: false, thinking_token_budget: 9, messages: [THOUGHT] },
  ],
  [
    "vllm",
    { enable_thinking: false, chat_template_kwargs: { a: 1 } },
    {
      chat_template_kwargs: { a: 1, enable_thinking: false },
      messages: [{ role: "assistant", content: "Yes", reasoning: "Hm" }],
    },
  ],
  [
    "sglang",
    { enable_thinking: false, chat_template_kwargs: { a: 1 } },
    { chat_template_kwargs: { a: 1, thinking: false, enable_thinking: false }, messages: [THOUGHT] },
  ],
  [
    "openai",
    { reasoning_effort: "low" },
    { reasoning_effort: "low", messages: [{ role: "assistant", content: "Yes" }] },
  ],
])("a server of dialect %s gets reasoning by the names that it knows", async (dialect, params, rest) => {
  const far = new FakeFar();
  const side = new FarSide({ baseURL: FAR, dialect }, far.fetch, new FakeClock());
  const { signal } = new AbortController();
  for await (const chunk of side.answer({
    params: { messages: [THOUGHT], ...params },
    from: null,
    logprobs: null,
    signal,
  }))
    expect(chunk.model).toBe("big");
  expect(far.bodies[0]).toEqual({ model: "big", stream: true, stream_options: { include_usage: true }, ...rest });
  for (const given of [{ enable_thinking: false }, { thinking_token_budget: 0 }]) {
    const refused = new FarSide({ baseURL: FAR, dialect: "openai" }, far.fetch, new FakeClock()).answer({
      params: { messages: [THOUGHT], ...given },
      from: null,
      logprobs: null,
      signal,
    });
    await expect(refused.next()).rejects.toMatchObject({ param: Object.keys(given)[0] });
  }
});

/** A near engine that sends these deltas and then loses its device. */
function reasoner(...deltas: readonly ChatCompletionDelta[]): EngineApi {
  async function* chunks(): AsyncGenerator<ChatCompletionChunk> {
    for (const delta of deltas) {
      await Promise.resolve();
      yield {
        id: "near",
        object: "chat.completion.chunk",
        created: 1,
        model: "tiny",
        choices: [{ index: 0, delta, logprobs: null, finish_reason: null }],
      };
    }
    throw new DeviceError("lost");
  }
  const create = (): Promise<Stream<ChatCompletionChunk>> => Promise.resolve(new Stream(chunks));
  return {
    ...fakeEngine(modelOf(new ScriptedSource([]))),
    chat: { completions: { create: create as unknown as EngineApi["chat"]["completions"]["create"] } },
  };
}
