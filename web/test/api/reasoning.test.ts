import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import type { Model } from "../../src/api/model.js";
import type { ChatCompletionCreateParamsNonStreaming } from "../../src/api/types.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../src/engine/request.js";
import { hasBit } from "../../src/grammar/constraint.js";
import { Grammars } from "../../src/grammar/grammars.js";
import { createLanguageModel } from "../../src/language_model/index.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";
import { fakeEngine, modelOf } from "./fake_model.js";

const [OPEN, CLOSE, END] = [257, 258, 259];
const messages = [{ role: "user", content: "hi" }] as const;
const CHAT =
  "{# tools: <tool_call> #}{% for m in messages %}[{{ m.role }}]" +
  "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}" +
  "{{ m.content }}{% endfor %}[assistant]";
/** As in Qwen3: the switch closes the reasoning in the prompt. */
const HYBRID =
  `${CHAT}{% if enable_thinking is defined and enable_thinking is false %}` +
  "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}";
/** As in DeepSeek R1: the prompt opens the reasoning. */
const OPENED = `${CHAT}{{ '<think>\\n' }}`;
const FORM = {
  type: "json_schema",
  json_schema: {
    schema: { type: "object", properties: { a: { enum: [1] } }, required: ["a"], additionalProperties: false },
  },
} as const;

test.each([
  [HYBRID, "<think>\nHm, é.\n</think>\n\nYes.", false],
  [OPENED, "Hm, é.\n</think>\n\nYes.", false],
  [OPENED, "Hm, é.\n</think>\n\nYes.", true],
])("reasoning is separate from the content, complete and streamed", async (template, answer, special) => {
  const { completions } = reasoner(template, [answer], special);
  const complete = await completions.create({ messages });
  expect(complete.choices[0]?.message).toEqual({
    role: "assistant",
    content: "Yes.",
    reasoning_content: "Hm, é.",
    refusal: null,
  });
  expect(complete.usage.completion_tokens_details).toEqual({ reasoning_tokens: ids(answer).indexOf(CLOSE) + 1 });
  const deltas: unknown[] = [];
  for await (const { choices } of await completions.create({ messages, stream: true }))
    deltas.push(...choices.map(({ delta }) => delta));
  const each = (text: string, key: string): readonly object[] =>
    Array.from(text).map((character) => ({ [key]: character }));
  expect(deltas).toEqual([
    { role: "assistant", content: "" },
    ...each("Hm, é.", "reasoning_content"),
    ...each("Yes.", "content"),
    {},
  ]);
});

test("a session of the Prompt API switches the reasoning, which is never part of its text", async () => {
  const thought = "<think>\nHm.\n</think>\n\nYes.";
  const { model, prompt } = reasoner(HYBRID, [thought, "Yes.", "Yes.", thought]);
  const factory = createLanguageModel(fakeEngine(model));
  const chat = await factory.create();
  expect(await chat.prompt("a")).toBe("Yes.");
  const pieces: string[] = [];
  for await (const piece of chat.promptStreaming("b", { thinking: false })) pieces.push(piece);
  expect(pieces.join("")).toBe("Yes.");
  const off = await (await factory.create({ thinking: false })).clone();
  expect(await off.prompt("c")).toBe("Yes.");
  expect(await off.prompt("d", { thinking: true })).toBe("Yes.");
  const closed = "[assistant]<think>\n\n</think>\n\n";
  expect([0, 1, 2, 3].map((index) => prompt(index).endsWith(closed))).toEqual([false, true, true, false]);
  expect(await off.measureContextUsage("e")).toBeGreaterThan(await off.measureContextUsage("e", { thinking: true }));
});

test("a prompt that fits only while the model may reason is refused without reasoning", async () => {
  const { model } = reasoner(HYBRID, ["Yes."]);
  const size = await (await createLanguageModel(fakeEngine(model)).create()).measureContextUsage("a");
  const factory = createLanguageModel(fakeEngine(model, size + 1));
  expect(await (await factory.create()).prompt("a")).toBe("Yes.");
  const refused = (await factory.create()).prompt("a", { thinking: false });
  await expect(refused).rejects.toMatchObject({ name: "QuotaExceededError" });
});

test("a session refuses to switch what the model lacks, and values that are not booleans", async () => {
  const { model, source } = reasoner(OPENED, ["Yes."]);
  const factory = createLanguageModel(fakeEngine(model));
  const lacking = { name: "NotSupportedError", message: expect.stringContaining("enable_thinking") as string };
  const wrong = { thinking: "off" as unknown as boolean };
  await expect(factory.create(wrong)).rejects.toThrow(TypeError);
  const chat = await factory.create();
  await expect(chat.prompt("a", wrong)).rejects.toThrow("thinking is a string, it must be true or false");
  await expect(chat.measureContextUsage("a", wrong)).rejects.toThrow(TypeError);
  for (const thinking of [true, false]) {
    await expect(factory.create({ thinking })).rejects.toMatchObject(lacking);
    await expect(chat.prompt("a", { thinking })).rejects.toMatchObject(lacking);
    await expect(chat.measureContextUsage("a", { thinking })).rejects.toMatchObject(lacking);
    expect(await factory.availability({ thinking })).toBe("unavailable");
  }
  expect(await factory.availability()).toBe("available");
  expect([chat.contextUsage, source.requests.length]).toEqual([0, 0]);
});

test("reasoning that never ends leaves no content", async () => {
  const { completions } = reasoner(OPENED, ["Hm. Hm."]);
  const { choices } = await completions.create({ messages, max_tokens: 3 });
  expect(choices[0]).toMatchObject({ finish_reason: "length", message: { content: null, reasoning_content: "Hm." } });
});

test.each([
  [{ chat_template_kwargs: { enable_thinking: false } }, true],
  [{ enable_thinking: false }, true],
  [{ reasoning_effort: "none" }, true],
  [{ reasoning_effort: "minimal" }, true],
  [{ reasoning_effort: "none", enable_thinking: true }, false],
  [{ reasoning_effort: "high" }, false],
  [{}, false],
] as const)("thinking is switched off in the template: %j", async (params, isOff) => {
  const { completions, prompt } = reasoner(HYBRID, ["Hi <think>"]);
  const { choices } = await completions.create({ messages, ...params });
  expect(choices[0]?.message.content).toBe("Hi <think>");
  expect(prompt(0).endsWith("</think>\n\n")).toBe(isOff);
});

test.each([
  [OPENED, { enable_thinking: false }, "enable_thinking"],
  [HYBRID, { enable_thinking: false, chat_template_kwargs: { enable_thinking: true } }, "enable_thinking"],
  ["{{ messages[0].content }}", { thinking_token_budget: 3 }, "thinking_token_budget"],
  [HYBRID, { chat_template_kwargs: { messages: [] } }, "chat_template_kwargs"],
  [HYBRID, { thinking_token_budget: -1 }, "thinking_token_budget"],
  [HYBRID, { reasoning_effort: "some" }, "reasoning_effort"],
])("parameters that the model does not support are errors: %#", async (template, params, param) => {
  const { completions } = reasoner(template, ["a"]);
  await expect(
    completions.create({ messages, ...params } as ChatCompletionCreateParamsNonStreaming),
  ).rejects.toMatchObject({ details: { param } });
});

test("variables of the request cannot forge control tokens", async () => {
  const { completions, source } = reasoner(`${CHAT}{{ note }}`, ["a"]);
  await completions.create({ messages, chat_template_kwargs: { note: "<s>" } });
  expect(source.requests[0]?.promptIds).not.toContain(256);
});

test("a budget ends the reasoning, and the answer continues", async () => {
  const written = "one two three four five six</think>\n\nYes.";
  for (const [budget, reasoning] of [
    [7, "one two"],
    [0, undefined],
  ] as const) {
    const { completions } = reasoner(OPENED, [written]);
    const { choices } = await completions.create({ messages, thinking_token_budget: budget });
    expect(choices[0]?.message.reasoning_content).toBe(reasoning);
    expect(choices[0]?.message.content?.endsWith("six</think>\n\nYes.")).toBe(true);
  }
  const { completions, source } = reasoner(OPENED, [`${"x".repeat(1100)}</think>Yes.`]);
  const thought = async (effort: "low" | "none" | "max") =>
    (await completions.create({ messages, reasoning_effort: effort })).choices[0]?.message.reasoning_content;
  expect([await thought("low"), await thought("none"), await thought("max")]).toEqual([
    "x".repeat(1024),
    undefined,
    "x".repeat(1100),
  ]);
  expect(source.requests.map(({ constraint }) => constraint === undefined)).toEqual([false, false, true]);
});

test.each([{}, { thinking_token_budget: 4 }])(
  "a response format constrains the text after the reasoning: %j",
  async (params) => {
    for (const [template, answer] of [
      [HYBRID, "<think>I am\n</think>"],
      [OPENED, "I am\n</think>"],
      [HYBRID, ""],
    ] as const) {
      const { completions } = reasoner(template, [answer]);
      const { choices } = await completions.create({ messages, response_format: FORM, max_tokens: 60, ...params });
      expect(choices[0]?.message.reasoning_content).toBe(answer === "" ? undefined : "I am");
      expect(JSON.parse(choices[0]?.message.content ?? "")).toEqual({ a: 1 });
    }
  },
);

test("the reasoning leaves room for the constrained answer", async () => {
  const { completions } = reasoner(OPENED, ["x".repeat(100)]);
  const { choices } = await completions.create({ messages, response_format: FORM, max_tokens: 30 });
  expect(choices[0]).toMatchObject({
    finish_reason: "stop",
    message: { content: '{"a":1}', reasoning_content: "x".repeat(30 - '{"a":1}'.length - 4) },
  });
  await expect(completions.create({ messages, response_format: FORM, max_tokens: 10 })).rejects.toThrow(
    "need 11 tokens, and max_tokens is 10",
  );
});

test("stop strings end the content only, and all tokens have logprobs", async () => {
  const { completions } = reasoner(HYBRID, ["<think>\nno stop</think>\n\nyes stop no"]);
  const { choices } = await completions.create({ messages, stop: " stop", logprobs: true });
  expect(choices[0]?.message).toMatchObject({ reasoning_content: "no stop", content: "yes" });
  expect(choices[0]?.logprobs?.content?.map(({ token }) => token).join("")).toBe("<think>\nno stop</think>\n\nyes");
});

test("an answer can be sent back unchanged", async () => {
  const { completions, prompt } = reasoner(HYBRID, ["<think>\nHm.\n</think>\n\nYes.", "Ok."]);
  const [choice] = (await completions.create({ messages })).choices;
  await completions.create({
    messages: [...messages, choice?.message ?? messages[0], { role: "user", content: "so?" }],
  });
  expect(prompt(1)).toBe("[user]hi[assistant]<think>\nHm.\n</think>\n\nYes.[user]so?[assistant]");
});

test.each([
  [HYBRID, { content: "Yes" }, "Yes", [undefined, "<think>a</think>b"]],
  [HYBRID, { content: "", reasoning_content: "Hm" }, "<think>\nHm", ["<think>a", "b"]],
  [
    HYBRID,
    { content: "Yes", reasoning_content: "Hm" },
    "<think>\nHm\n</think>\n\nYes",
    [undefined, "<think>a</think>b"],
  ],
  [HYBRID, { content: "<think>\nHm" }, "<think>\nHm", ["<think>a", "b"]],
  [HYBRID, { content: "<think>Hm</think>Yes" }, "<think>Hm</think>Yes", [undefined, "<think>a</think>b"]],
  [HYBRID, { content: "" }, "", ["a", "b"]],
  [OPENED, { content: "Yes" }, "<think>\n\n</think>\n\nYes", [undefined, "<think>a</think>b"]],
  [OPENED, { content: "", reasoning_content: "Hm" }, "<think>\nHm", ["<think>a", "b"]],
  [OPENED, { content: "Hm</think>Yes" }, "<think>\nHm</think>Yes", [undefined, "<think>a</think>b"]],
])("an answer continues from reasoning and content: %#", async (template, begun, expected, [reasoning, content]) => {
  const { completions, prompt } = reasoner(template, ["<think>a</think>b"]);
  const { choices } = await completions.create({
    messages: [...messages, { role: "assistant", ...begun }],
    continue_final_message: true,
  });
  expect(prompt(0)).toBe(`[user]hi[assistant]${expected}`);
  expect([choices[0]?.message.reasoning_content, choices[0]?.message.content]).toEqual([reasoning, content]);
});

/** Yields its answers, a token for each byte and marker, as far as a request's constraint allows. */
class ConstrainedSource implements TokenSource {
  readonly requests: TokenRequest[] = [];

  constructor(private readonly answers: readonly string[]) {}

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const answer = ids(this.answers[Math.min(this.requests.length, this.answers.length - 1)] ?? "");
    this.requests.push(request);
    const { promptIds, constraint, maxTokens = 4096, logprobs } = request;
    await Promise.resolve();
    let count = 0;
    let finishReason: AnswerEnd["finishReason"] = "stop";
    for (;;) {
      const mask = constraint?.mask() ?? null;
      const expected = answer[count] ?? END;
      const tokenId =
        mask === null || hasBit(mask, expected)
          ? expected
          : Array.from({ length: 260 }, (_, id) => (id + END) % 260).find((id) => hasBit(mask, id));
      if (tokenId === undefined) throw new Error("the mask is empty");
      if (tokenId === END) break;
      if (count === maxTokens) {
        finishReason = "length";
        break;
      }
      constraint?.accept(tokenId);
      count++;
      yield { tokenId, logprob: logprobs === undefined ? null : -1, alternatives: [] };
    }
    constraint?.dispose();
    return { finishReason, promptTokens: promptIds.length, cachedTokens: 0, completionTokens: count };
  }
}

function reasoner(template: string, answers: readonly string[], special = false) {
  const json = JSON.parse(byteLevelTokenizer()) as {
    added_tokens: { id: number; content: string; special: boolean }[];
  };
  const marker = json.added_tokens[1];
  if (marker === undefined) throw new Error("the tokenizer has no <think>");
  const added = [
    json.added_tokens[0],
    { ...marker, special },
    { ...marker, special, id: CLOSE, content: "</think>" },
    { ...marker, id: END, content: "</s>", special: true },
  ];
  const tokenizerJson = JSON.stringify({ ...json, added_tokens: added });
  const source = new ConstrainedSource(answers);
  const text = new Tokenizer(tokenizerJson, { ...NO_TOKENS, eos_token: "</s>", ...templateEntry(template) });
  const model: Model = modelOf(source, {
    text,
    grammar: new Grammars(tokenizerJson, { vocab_size: 260, eos_token_ids: [END] }),
  });
  const names = new Map([
    [OPEN, "<think>"],
    [CLOSE, "</think>"],
  ]);
  const prompt = (index: number): string =>
    (source.requests[index]?.promptIds ?? []).map((id) => names.get(id) ?? String.fromCharCode(id)).join("");
  return { model, completions: new ChatCompletions(model), source, prompt };
}

/** The token ids of a text, with the markers as single tokens. */
function ids(text: string): readonly number[] {
  return text
    .split(/(<\/?think>)/)
    .flatMap((part) =>
      part === "<think>" ? [OPEN] : part === "</think>" ? [CLOSE] : [...new TextEncoder().encode(part)],
    );
}
